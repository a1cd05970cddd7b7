"""The HTTP application: predictions in TensorFlow Serving's REST form, health, metrics, and a page for manual requests.

docs/serving.md lists the requests and their answers; `request_forms` parses the bodies.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

import asyncio
import collections
import concurrent.futures
import dataclasses
import logging
import pathlib
import time
from collections.abc import Callable, Mapping

import orjson
from prometheus_client import generate_latest

from ctr_trainer.embedding.service.security import is_loopback, split_address, token_refusal
from ctr_trainer.live.scoring import answers, request_forms
from ctr_trainer.live.scoring.batcher import Batcher, not_in_time
from ctr_trainer.live.scoring.examples import Examples
from ctr_trainer.live.scoring.live_model import LiveModel
from ctr_trainer.live.scoring.metrics import ScoreMetrics
from ctr_trainer.live.scoring.refusals import RequestRefused, shown
from ctr_trainer.live.scoring.request_forms import ARROW, Form
from ctr_trainer.live.scoring.served_model import Freshness, Scored
from ctr_trainer.settings.command_flags import ScoreFlags

_log = logging.getLogger(__name__)
_MODELS, _PREDICT = "/v1/models", ":predict"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_METRICS_TYPE, _JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"


@dataclasses.dataclass
class Request:
    """A request. `length` is that of its body, 0 if unknown; `refusal` is the error that is its answer, or None."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    body: bytearray = dataclasses.field(default_factory=bytearray)
    length: int = 0
    keeps_open: bool = False
    began: float = 0.0
    refusal: RequestRefused | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    """The contents of an answer."""

    body: bytes
    status: int = 200
    kind: str = "application/json"
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


Respond = Callable[[Answer], None]
_Future = concurrent.futures.Future[Scored]


@dataclasses.dataclass(frozen=True)
class _Open:
    """A request that is being scored."""

    began: float
    examples: Examples
    form: Form
    respond: Respond
    loop: asyncio.AbstractEventLoop


class HttpApp:
    """The application of an `HttpServer`. All methods except `__init__` run in the thread of its event loop.

    Without a token on a loopback address, it answers only requests whose `Host` header names this machine. Otherwise, a
    web page of another site could read predictions through a host name that resolves to this machine.

    `token`: the token that requests about the model must have; None if they need no token.
    """

    def __init__(
        self, flags: ScoreFlags, live: LiveModel, batcher: Batcher, metrics: ScoreMetrics, token: str | None
    ) -> None:
        self._live, self._batcher, self._metrics = live, batcher, metrics
        self._limits, self._token = flags.limits, token
        self._own_hosts = _LOOPBACK if is_loopback(split_address(flags.bind)[0]) and token is None else ()
        self._page = pathlib.Path(__file__).with_name("page.html").read_bytes()
        self._open: dict[_Future, _Open] = {}  # The requests that are being scored, in order of arrival.
        self._scored: collections.deque[_Future] = collections.deque()
        self._is_told = False  # Whether the event loop will call `_answer_all`.

    def admit(self, request: Request) -> None:
        """Refuses a request by its headers. A prediction that would come too late is refused before any other work."""
        self._check_host(request.headers.get("host", ""))
        if request.method == "POST":
            self._batcher.refuse_late()
        cure = "send it as `Authorization: Bearer TOKEN`"
        if request.path.startswith(_MODELS) and (
            refusal := token_refusal(request.headers.get("authorization", ""), self._token, cure)
        ):
            raise RequestRefused(refusal, status=401)

    def answer(self, request: Request, respond: Respond) -> None:
        """Answers a request, a prediction once it is scored."""
        path, is_get = request.path, request.method in ("GET", "HEAD")
        if request.method == "POST" and path.startswith(f"{_MODELS}/") and path.endswith(_PREDICT):
            self._begin(request, respond)
        elif is_get and path == "/":
            respond(Answer(self._page, kind="text/html; charset=utf-8"))
        elif is_get and path == "/healthz":
            respond(self._health())
        elif is_get and path == "/metrics":
            respond(Answer(generate_latest(self._metrics.registry), kind=_METRICS_TYPE))
        elif is_get and path == _MODELS:  # For the page.
            respond(_json({"models": [self._live.name] if self._live.loaded else []}))
        elif is_get and path.startswith(f"{_MODELS}/"):
            respond(self._about(path))
        else:
            text = f"{request.method} {path}: no such path or method; expected POST {_MODELS}/NAME{_PREDICT}"
            raise RequestRefused(text, status=404)

    def refused(self, error: RequestRefused) -> Answer:
        """Returns the answer to a refused request."""
        text = str(error).encode(errors="backslashreplace").decode()
        return _json({"error": text}, error.status, error.headers)

    def note(self, request: Request, status: int) -> None:
        """Counts an answer, of status 499 if the client hung up before the end of its request."""
        if request.method == "POST":
            self._metrics.note_request(status, time.monotonic() - request.began)

    def look(self, now: float) -> None:
        """Answers the requests that are not scored in time."""
        for future, waiting in [*self._open.items()]:
            if now < waiting.began + self._limits.timeout_secs:
                break
            future.cancel()
            self._end(future, not_in_time(self._limits))

    def _check_host(self, host: str) -> None:
        known = self._own_hosts
        if known and host and host.rpartition(":")[0].lower() not in known and host.lower() not in known:
            raise RequestRefused(
                f"this server is {' or '.join(known)}, not {shown(host)}: send one of these as `Host`, or start "
                "the server with a token (token_file)",
                status=421,
            )

    def _health(self) -> Answer:
        wrong, state = self._live.what_is_wrong(), dict[str, object]()
        if self._live.loaded:
            state = self._live.loaded.freshness.to_dict()
            state |= {"problem": self._live.problem} if self._live.problem else {}
        return _json({"status": wrong or "ok", **state}, 503 if wrong else 200)

    def _about(self, path: str) -> Answer:
        name, _, what = path.removeprefix(f"{_MODELS}/").partition("/")
        if what not in ("", "metadata"):
            raise RequestRefused(f"{path}: no such path; expected {_MODELS}/NAME or {_MODELS}/NAME/metadata", 404)
        model = self._live.named(name)
        now = model.freshness
        if what:
            return _json(answers.metadata(name, model), headers=_headers(now))
        status = {"error_code": "OK", "error_message": ""}
        version = {"version": str(now.epoch), "state": "AVAILABLE", "status": status}
        return _json({"model_version_status": [version]}, headers=_headers(now))

    def _begin(self, request: Request, respond: Respond) -> None:
        """Parses a request, and passes its examples to the batcher."""
        model = self._live.named(request.path[len(_MODELS) + 1 : -len(_PREDICT)])
        kind = request.headers.get("content-type", "").partition(";")[0]
        parse = request_forms.of_arrow if kind == ARROW else request_forms.of_json
        examples, form = parse(model.tower.inputs, request.body, self._limits)
        future = self._batcher.submit(examples)
        self._batcher.note_open(examples)
        self._open[future] = _Open(request.began, examples, form, respond, asyncio.get_running_loop())
        future.add_done_callback(self._tell)

    def _tell(self, future: _Future) -> None:
        """Makes the event loop answer a request. Any thread may call it."""
        waiting = self._open.get(future)
        self._scored.append(future)
        if waiting is not None and not self._is_told:
            self._is_told = True
            waiting.loop.call_soon_threadsafe(self._answer_all)

    def _answer_all(self) -> None:
        self._is_told = False
        while self._scored:
            future = self._scored.popleft()
            if future in self._open:
                self._end(future, future.exception())

    def _end(self, future: _Future, error: BaseException | None) -> None:
        waiting = self._open.pop(future)
        self._batcher.note_answered(waiting.examples)
        try:
            if error is not None:
                raise error
            scored = future.result()
            body = answers.predictions(scored.outputs, waiting.form)
        except RequestRefused as refusal:
            waiting.respond(self.refused(refusal))
            return
        except Exception:
            _log.exception("an answer failed")
            waiting.respond(self.refused(RequestRefused("the answer failed; the server's log says more", status=500)))
            return
        parts = {**scored.seconds, "total": time.monotonic() - waiting.began}
        timing = ", ".join([f"{part};dur={1000 * seconds:.3f}" for part, seconds in parts.items()])
        headers = {**_headers(scored.freshness), "Server-Timing": timing}
        waiting.respond(Answer(body, kind=ARROW if waiting.form is Form.ARROW else _JSON, headers=headers))


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(orjson.dumps(value), status, _JSON, headers or {})


def _headers(freshness: Freshness) -> dict[str, str]:
    headers = {
        "X-Model-Generation": str(freshness.generation),
        "X-Model-Epoch": str(freshness.epoch),
        "X-Model-Step": str(freshness.global_step),
        "X-Model-Age-Seconds": f"{freshness.age_secs:.3f}",
    }
    if freshness.event_age_secs is not None:
        headers["X-Model-Event-Age-Seconds"] = f"{freshness.event_age_secs:.3f}"
    return headers
