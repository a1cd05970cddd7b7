"""The HTTP application: predictions in TensorFlow Serving's REST form, health, metrics, and a page for manual requests.

docs/serving.md lists the requests and their answers; `request_forms` parses the bodies.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

import asyncio
import logging
import pathlib
import time

from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ctr_trainer.embedding.service.security import is_loopback, split_address, token_refusal
from ctr_trainer.export.raw_inputs import RawInputs
from ctr_trainer.live.scoring import answers, request_forms
from ctr_trainer.live.scoring.batcher import Batcher, not_in_time
from ctr_trainer.live.scoring.examples import LIMIT, Examples
from ctr_trainer.live.scoring.live_model import LiveModel
from ctr_trainer.live.scoring.metrics import ScoreMetrics
from ctr_trainer.live.scoring.refusals import RequestRefused, shown
from ctr_trainer.live.scoring.served_model import Freshness
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
# Limit of the bytes of all bodies in memory, as a number of bodies of the largest size.
_MOST_LARGE_BODIES = 16
_BODY_SECONDS = 30.0
_PREDICT = ":predict"
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpApp:
    """The ASGI application.

    Without a token on a loopback address, it answers only requests whose `Host` header names this machine. Otherwise, a
    web page of another site could read predictions through a host name that resolves to this machine.

    `token`: the token that requests about the model must have; None if they need no token.

    `is_ending`: whether each answer ends its connection.
    """

    def __init__(
        self, flags: ScoreFlags, live: LiveModel, batcher: Batcher, metrics: ScoreMetrics, token: str | None
    ) -> None:
        self._live, self._batcher, self._metrics = live, batcher, metrics
        self._limits, self._token = flags.limits, token
        self._own_hosts = _LOOPBACK if is_loopback(split_address(flags.bind)[0]) and token is None else ()
        self.is_ending = False
        self._held_bytes, self._seldom = 0, Seldom(_log)
        page = pathlib.Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        model = "/v1/models/{name:path}"
        self._routes = Starlette(
            routes=[
                Route("/", lambda request: HTMLResponse(page)),
                Route("/healthz", self._health),
                Route(
                    "/metrics", lambda request: Response(generate_latest(metrics.registry), media_type=_METRICS_TYPE)
                ),
                Route("/v1/models", self._models),
                Route(model, self._about, methods=["GET"]),
                Route(model, self._predict, methods=["POST"]),
            ],
            exception_handlers={RequestRefused: _refused, 404: _no_route, 405: _no_route},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. A prediction that would come too late is refused before any other work."""
        app: ASGIApp = self._routes
        request = Request(scope)
        try:
            self._check_host(request.headers.get("host", ""))
            if request.method == "POST":
                self._batcher.refuse_late()
        except RequestRefused as error:
            if error.status == 429:
                self._metrics.note_request("http", error.status, 0.0)
            app = await _refused(request, error)

        async def send_last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        await app(scope, receive, send_last if self.is_ending else send)

    def _check_host(self, host: str) -> None:
        known = self._own_hosts
        if known and host and host.rpartition(":")[0].lower() not in known and host.lower() not in known:
            raise RequestRefused(
                f"this server is {' or '.join(known)}, not {shown(host)}: send one of these as `Host`, or start "
                "the server with a token (token_file)",
                status=421,
            )

    async def _health(self, request: Request) -> Response:
        wrong, state = self._live.what_is_wrong(), dict[str, object]()
        if self._live.loaded:
            state = self._live.loaded.freshness.to_dict()
            state |= {"problem": self._live.problem} if self._live.problem else {}
        return JSONResponse({"status": wrong or "ok", **state}, 503 if wrong else 200)

    async def _models(self, request: Request) -> Response:
        """Returns the name of the model, for the page."""
        self._check_token(request)
        return JSONResponse({"models": [self._live.name] if self._live.loaded else []})

    async def _about(self, request: Request) -> Response:
        self._check_token(request)
        name, _, what = request.path_params["name"].partition("/")
        if what not in ("", "metadata"):
            raise RequestRefused(
                f"{request.url.path}: no such path; expected /v1/models/NAME or /v1/models/NAME/metadata", status=404
            )
        model = self._live.named(name)
        now = model.freshness
        if what:
            return JSONResponse(answers.metadata(name, model), headers=_headers(now))
        status = {"error_code": "OK", "error_message": ""}
        version = {"version": str(now.epoch), "state": "AVAILABLE", "status": status}
        return JSONResponse({"model_version_status": [version]}, headers=_headers(now))

    async def _predict(self, request: Request) -> Response:
        began, status = time.perf_counter(), 500
        try:
            response = await self._predictions(request, began)
            status = response.status_code
            return response
        except RequestRefused as error:
            status = error.status
            raise
        finally:
            self._metrics.note_request("http", status, time.perf_counter() - began)

    async def _predictions(self, request: Request, began: float) -> Response:
        self._check_token(request)
        name = request.path_params["name"]
        if not name.endswith(_PREDICT):
            raise RequestRefused(f"{request.url.path}: no such path; expected /v1/models/NAME{_PREDICT}", status=404)
        model = self._live.named(name.removesuffix(_PREDICT))
        examples, of_rows = await self._examples(request, model.tower.inputs)
        try:
            with self._batcher.answering(examples) as future:
                scored = await asyncio.wait_for(asyncio.wrap_future(future), self._limits.timeout_secs)
        except (TimeoutError, asyncio.TimeoutError):
            raise not_in_time(self._limits) from None
        parts = {**scored.seconds, "total": time.perf_counter() - began}
        timing = ", ".join(f"{part};dur={1000 * seconds:.3f}" for part, seconds in parts.items())
        return Response(
            answers.predictions(scored.outputs, of_rows),
            media_type="application/json",
            headers={**_headers(scored.freshness), "Server-Timing": timing},
        )

    async def _examples(self, request: Request, inputs: RawInputs) -> tuple[Examples, bool]:
        """Reads and parses a body, see `request_forms.of_json`. Until then, its bytes count as held by the server."""
        body = bytearray()
        try:
            await asyncio.wait_for(self._read(request, body), _BODY_SECONDS)
            return request_forms.of_json(inputs, bytes(body), self._limits)
        except (TimeoutError, asyncio.TimeoutError):
            raise RequestRefused(f"the body did not arrive within {_BODY_SECONDS:g} s", status=408) from None
        except ClientDisconnect:
            self._seldom.warning("a client of %s hung up before the end of its request", request.url.path)
            raise RequestRefused("the client hung up before the end of its request", status=499) from None
        finally:
            self._held_bytes -= len(body)

    async def _read(self, request: Request, body: bytearray) -> None:
        """Appends the parts of a request's body to `body`."""
        most = self._limits.max_body_bytes
        too_large = RequestRefused(
            f"the body has over {most} bytes, {LIMIT}: send fewer examples at a time", status=413
        )
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise too_large
        async for part in request.stream():
            if len(body) + len(part) > most:
                raise too_large
            if self._held_bytes + len(part) > _MOST_LARGE_BODIES * most:
                raise RequestRefused(
                    "the bodies of too many requests arrive at the same time: send the request again later", status=429
                )
            self._held_bytes += len(part)
            body += part

    def _check_token(self, request: Request) -> None:
        cure = "send it as `Authorization: Bearer TOKEN`"
        if refusal := token_refusal(request.headers.get("authorization", ""), self._token, cure):
            raise RequestRefused(refusal, status=401)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestRefused)
    text = str(error).encode(errors="backslashreplace").decode()
    return JSONResponse({"error": text}, error.status, headers=error.headers)


async def _no_route(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    text = f"{request.method} {request.url.path}: no such path or method; expected POST /v1/models/NAME{_PREDICT}"
    return JSONResponse({"error": text}, error.status_code)


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
