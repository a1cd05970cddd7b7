"""The HTTP application: predictions in TensorFlow Serving's REST form, health, metrics, and a page for manual requests.

docs/serving.md lists the requests and their answers; `request_forms` parses the bodies.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

import asyncio
import contextlib
import dataclasses
import logging
import pathlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import orjson
from prometheus_client import generate_latest

from ctr_trainer.embedding.service.security import is_loopback, split_address, token_refusal
from ctr_trainer.live.scoring import answers, request_forms
from ctr_trainer.live.scoring.batcher import Batcher, not_in_time
from ctr_trainer.live.scoring.examples import LIMIT
from ctr_trainer.live.scoring.live_model import LiveModel
from ctr_trainer.live.scoring.metrics import ScoreMetrics
from ctr_trainer.live.scoring.refusals import RequestRefused, shown
from ctr_trainer.live.scoring.request_forms import ARROW, Form
from ctr_trainer.live.scoring.served_model import Freshness
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
_MODELS, _PREDICT = "/v1/models", ":predict"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_METRICS_TYPE, _JSON = "text/plain; version=0.0.4; charset=utf-8", "application/json"
_BODY_SECONDS = 30.0
# Limit of the bytes of all bodies in memory, as a number of bodies of the largest size.
_MOST_LARGE_BODIES = 16
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[Mapping[str, Any]], Awaitable[None]]


@dataclasses.dataclass(frozen=True)
class Answer:
    """The contents of an answer."""

    body: bytes
    status: int = 200
    kind: str = _JSON
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Request:
    method: str
    path: str
    headers: dict[bytes, bytes]
    receive: Receive
    began: float

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")


class HttpApp:
    """An application of ASGI. All methods except `__init__` run in the thread of its event loop.

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
        self._held_bytes, self._seldom = 0, Seldom(_log)
        self._deadlines: dict[asyncio.Task, float] = {}  # Of the tasks that answer requests, while they wait.

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answers a request. A header that is sent twice counts once."""
        request = _Request(scope["method"], scope["path"], dict(scope["headers"]), receive, time.monotonic())
        try:
            self._admit(request)
            answer = await self._answer(request)
        except RequestRefused as error:
            answer = _refused(error)
        except Exception:
            _log.exception("a request for %s failed", request.path)
            answer = _refused(RequestRefused("the server failed; its log says more", status=500))
        if request.method == "POST":
            self._metrics.note_request(answer.status, time.monotonic() - request.began)
        headers = {"content-type": answer.kind, "content-length": str(len(answer.body)), **answer.headers}
        if answer.status == 408 or answer.status != 200 and b"expect" in request.headers:
            headers["connection"] = "close"  # The body may not follow.
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": answer.status, "headers": encoded})
        await send({"type": "http.response.body", "body": answer.body})

    def look(self, now: float) -> None:
        """Ends the waiting of requests that do not arrive, or are not scored, in time."""
        for task, deadline in self._deadlines.items():
            if now > deadline:
                task.cancel()

    def _admit(self, request: _Request) -> None:
        """Refuses a request by its headers. A prediction that would come too late is refused before any other work."""
        self._check_host(request.header(b"host"))
        if request.method == "POST":
            self._batcher.refuse_late()
        cure = "send it as `Authorization: Bearer TOKEN`"
        if request.path.startswith(_MODELS) and (
            refusal := token_refusal(request.header(b"authorization"), self._token, cure)
        ):
            raise RequestRefused(refusal, status=401)

    async def _answer(self, request: _Request) -> Answer:
        path, is_get = request.path, request.method in ("GET", "HEAD")
        if request.method == "POST" and path.startswith(f"{_MODELS}/") and path.endswith(_PREDICT):
            return await self._predict(request)
        if is_get and path == "/":
            return Answer(self._page, kind="text/html; charset=utf-8")
        if is_get and path == "/healthz":
            return self._health()
        if is_get and path == "/metrics":
            return Answer(generate_latest(self._metrics.registry), kind=_METRICS_TYPE)
        if is_get and path == _MODELS:  # For the page.
            return _json({"models": [self._live.name] if self._live.loaded else []})
        if is_get and path.startswith(f"{_MODELS}/") and not path.endswith(_PREDICT):
            return self._about(path)
        text = f"{request.method} {path}: no such path or method; expected POST {_MODELS}/NAME{_PREDICT}"
        raise RequestRefused(text, status=404)

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

    async def _predict(self, request: _Request) -> Answer:
        model = self._live.named(request.path[len(_MODELS) + 1 : -len(_PREDICT)])
        kind = request.header(b"content-type").partition(";")[0]
        parse = request_forms.of_arrow if kind == ARROW else request_forms.of_json
        body = bytearray()
        try:
            with self._until(request.began + _BODY_SECONDS, _no_body_in_time):
                await self._read(request, body)
            examples, form = parse(model.tower.inputs, body, self._limits)
        finally:
            self._held_bytes -= len(body)
        with self._until(request.began + self._limits.timeout_secs, lambda: not_in_time(self._limits)):
            future = self._batcher.submit(examples)
            self._batcher.note_open(examples)
            try:
                scored = await future
            finally:
                self._batcher.note_answered(examples)
        found = answers.predictions(scored.outputs, form)
        parts = {**scored.seconds, "total": time.monotonic() - request.began}
        timing = ", ".join([f"{part};dur={1000 * seconds:.3f}" for part, seconds in parts.items()])
        headers = {**_headers(scored.freshness), "Server-Timing": timing}
        return Answer(found, kind=ARROW if form is Form.ARROW else _JSON, headers=headers)

    async def _read(self, request: _Request, body: bytearray) -> None:
        """Appends the parts of a request's body, whose bytes count as held by the server."""
        most, is_complete = self._limits.max_body_bytes, False
        too_large = f"the body has over {most} bytes, {LIMIT}: send fewer examples at a time"
        if int(request.header(b"content-length") or 0) > most:
            raise RequestRefused(too_large, status=413)
        while not is_complete:
            message = await request.receive()
            if message["type"] != "http.request":
                self._seldom.warning("a client of %s hung up before the end of its request", request.path)
                raise RequestRefused("the client hung up before the end of its request", status=499)
            part, is_complete = message["body"], not message["more_body"]
            if len(body) + len(part) > most:
                raise RequestRefused(too_large, status=413)
            if self._held_bytes + len(part) > _MOST_LARGE_BODIES * most:
                raise RequestRefused(
                    "the bodies of too many requests arrive at the same time: send the request again later", status=429
                )
            self._held_bytes += len(part)
            body += part

    @contextlib.contextmanager
    def _until(self, deadline: float, late: Callable[[], RequestRefused]) -> Iterator[None]:
        """Refuses the request of this task if the block lasts until a deadline."""
        task = asyncio.current_task()
        assert task is not None
        self._deadlines[task] = deadline
        try:
            yield
        except asyncio.CancelledError:
            raise late() from None
        finally:
            del self._deadlines[task]


def _no_body_in_time() -> RequestRefused:
    return RequestRefused(f"the body did not arrive within {_BODY_SECONDS:g} s", status=408)


def _refused(error: RequestRefused) -> Answer:
    text = str(error).encode(errors="backslashreplace").decode()
    return _json({"error": text}, error.status, error.headers)


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
