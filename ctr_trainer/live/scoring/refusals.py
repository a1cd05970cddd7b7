"""The errors of requests that get no predictions, with their HTTP status."""

import json
import math

from ctr_trainer.system.messages.errors import UserError

_SHOWN = 80


class RequestRefused(UserError):
    """A request that gets no predictions. The message of the error is the answer.

    Attributes:
      status: the HTTP status.
      retry_secs: number of seconds after which the same request may succeed; None if it never will.
    """

    status = 400
    retry_secs: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers that belong to the status."""
        return {} if self.retry_secs is None else {"Retry-After": str(math.ceil(self.retry_secs))}


class WrongToken(RequestRefused):
    """The request has no token, or a wrong one."""

    status = 401

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class WrongHost(RequestRefused):
    """The request names a host that this server does not have."""

    status = 421


class BodyTooSlow(RequestRefused):
    """The request did not arrive in time, so its connection ends."""

    status = 408

    @property
    def headers(self) -> dict[str, str]:
        return {"Connection": "close"}


class HungUp(RequestRefused):
    """The client disconnected before the end of its request, so nobody reads the answer."""

    status = 499


class NotThere(RequestRefused):
    """This server has no such model, or no such path."""

    status = 404


class TooLarge(RequestRefused):
    """The request has too many bytes or values."""

    status = 413


class QueueFull(RequestRefused):
    """Too many examples wait."""

    status = 429
    retry_secs = 1


class PredictionFailed(RequestRefused):
    """The model failed, or its predictions cannot be sent."""

    status = 500


class NotReady(RequestRefused):
    """No model is loaded, or its rows cannot be read now."""

    status = 503
    retry_secs = 1


class TookTooLong(RequestRefused):
    """The predictions were not computed in time."""

    status = 504
    retry_secs = 1


def shown(value: object) -> str:
    """Returns a shortened value for a message. Lone surrogates, which JSON can contain, are shown as escapes."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
