"""The HTTP application: predictions in TensorFlow Serving's REST form, health, metrics, and a page for manual requests.

docs/serving.md lists the requests and their answers; `request_forms` parses the bodies.

Source: https://www.tensorflow.org/tfx/serving/api_rest
"""

import asyncio
import logging
import pathlib
import time
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ctr_trainer.embedding.service.security import token_refusal
from ctr_trainer.live.publication.raw_inputs import RawInputs
from ctr_trainer.live.scoring import answers, request_forms
from ctr_trainer.live.scoring.batcher import Batcher, NoteRequest, not_in_time
from ctr_trainer.live.scoring.examples import LIMIT, Examples
from ctr_trainer.live.scoring.live_model import LiveModel
from ctr_trainer.live.scoring.refusals import (
    HungUp,
    NotThere,
    PredictionFailed,
    QueueFull,
    RequestRefused,
    TooLarge,
    WrongToken,
)
from ctr_trainer.live.scoring.served_model import Freshness
from ctr_trainer.settings.command_flags import ScoreLimits
from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
# Limit of the bytes of all bodies in memory, as a number of bodies of the largest size.
_MOST_LARGE_BODIES = 16
_PREDICT = ":predict"
_FIGURES_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpApp:
    """The ASGI application.

    Args:
      note_request: called for each answer to `:predict`.
      figures: f() -> the metrics of the server in Prometheus' text format.
      token: the token that requests about the model must have; None if they need no token.
    """

    def __init__(
        self,
        live: LiveModel,
        batcher: Batcher,
        note_request: NoteRequest,
        figures: Callable[[], bytes],
        limits: ScoreLimits,
        token: str | None,
    ) -> None:
        self._live, self._batcher, self._note_request = live, batcher, note_request
        self._limits, self._token = limits, token
        self._held_bytes, self._seldom = 0, Seldom(_log)
        page = pathlib.Path(__file__).with_name("page.html").read_text(encoding="utf-8")
        model = "/v1/models/{name:path}"
        self._routes = Starlette(
            routes=[
                Route("/", lambda request: HTMLResponse(page)),
                Route("/healthz", self._health),
                Route("/metrics", lambda request: Response(figures(), media_type=_FIGURES_TYPE)),
                Route("/v1/models", self._models),
                Route(model, self._about, methods=["GET"]),
                Route(model, self._predict, methods=["POST"]),
            ],
            exception_handlers={RequestRefused: refused, 404: _no_route, 405: _no_route},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request. A prediction that would come too late is refused before any other work."""
        app: ASGIApp = self._routes
        if scope["type"] == "http" and scope["method"] == "POST":
            try:
                self._batcher.refuse_late()
            except QueueFull as error:
                self._note_request("http", error.status, 0.0)
                app = await refused(Request(scope), error)
        await app(scope, receive, send)

    async def _health(self, request: Request) -> Response:
        wrong = self._live.what_is_wrong()
        now = self._live.model.freshness.to_dict() if self._live.is_loaded else {}
        problem = {"problem": self._live.problem} if self._live.problem else {}
        return JSONResponse({"status": wrong or "ok", **problem, **now}, 503 if wrong else 200)

    async def _models(self, request: Request) -> Response:
        """Returns the name of the model, for the page."""
        self._check_token(request)
        return JSONResponse({"models": [self._live.name] if self._live.is_loaded else []})

    async def _about(self, request: Request) -> Response:
        self._check_token(request)
        name, _, what = request.path_params["name"].partition("/")
        if what not in ("", "metadata"):
            raise NotThere(f"{request.url.path}: no such path; expected /v1/models/NAME or /v1/models/NAME/metadata")
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
            self._note_request("http", status, time.perf_counter() - began)

    async def _predictions(self, request: Request, began: float) -> Response:
        self._check_token(request)
        name = request.path_params["name"]
        if not name.endswith(_PREDICT):
            raise NotThere(f"{request.url.path}: no such path; expected /v1/models/NAME{_PREDICT}")
        model = self._live.named(name.removesuffix(_PREDICT))
        examples, of_rows = await self._examples(request, model.tower.inputs)
        try:
            with self._batcher.answering(examples) as future:
                scored = await asyncio.wait_for(asyncio.wrap_future(future), self._limits.timeout_secs)
        except (TimeoutError, asyncio.TimeoutError):
            raise not_in_time(self._limits) from None
        except RequestRefused:
            raise
        except Exception as error:
            raise PredictionFailed(f"the model failed: {type(error).__name__}; the server's log says more") from error
        parts = {**scored.seconds, "total": time.perf_counter() - began}
        timing = ", ".join(f"{part};dur={1000 * seconds:.3f}" for part, seconds in parts.items())
        return Response(
            answers.predictions(scored.outputs, of_rows),
            media_type="application/json",
            headers={**_headers(scored.freshness), "Server-Timing": timing},
        )

    async def _examples(self, request: Request, inputs: RawInputs) -> tuple[Examples, bool]:
        """Reads and parses a body, see `request_forms.of_json`. Until then, its bytes count as held by the server."""
        most = self._limits.max_body_bytes
        too_large = TooLarge(f"the body has over {most} bytes, {LIMIT}: send fewer examples at a time")
        length = request.headers.get("content-length", "0")
        if length.isdecimal() and int(length) > most:
            raise too_large
        parts, size = [], 0
        try:
            async for part in request.stream():
                if size + len(part) > most:
                    raise too_large
                size += len(part)
                self._held_bytes += len(part)
                if self._held_bytes > _MOST_LARGE_BODIES * most:
                    raise QueueFull(
                        "the bodies of too many requests arrive at the same time: send the request again later"
                    )
                parts.append(part)
            body = b"".join(parts)
            parts.clear()
            return request_forms.of_json(inputs, body, self._limits)
        except ClientDisconnect:
            self._seldom.warning("a client of %s hung up before the end of its request", request.url.path)
            raise HungUp("the client hung up before the end of its request") from None
        finally:
            self._held_bytes -= size

    def _check_token(self, request: Request) -> None:
        cure = "send it as `Authorization: Bearer TOKEN`"
        if refusal := token_refusal(request.headers.get("authorization", ""), self._token, cure):
            raise WrongToken(refusal)


async def refused(request: Request, error: Exception) -> JSONResponse:
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
