"""Why a request gets no predictions. Each kind has its HTTP status; the message is the answer's."""

import math

from ctr_trainer.messages.errors import UserError


class RequestRefused(UserError):
    """A request that is not answered.

    Attributes:
      status: of HTTP.
      retry_secs: after how many seconds the same request may succeed; None if it never will.
    """

    status = 400
    retry_secs = None

    @property
    def headers(self):
        """-> dict of the HTTP headers that go with the status."""
        return {} if self.retry_secs is None else {"Retry-After": str(math.ceil(self.retry_secs))}


class WrongToken(RequestRefused):
    """There is no token, or a wrong one."""

    status = 401

    @property
    def headers(self):
        return {"WWW-Authenticate": "Bearer"}


class WrongHost(RequestRefused):
    """The request was sent to a name that is not the name of this server."""

    status = 421


class HungUp(RequestRefused):
    """The client hung up before the end of its request; nobody reads the answer."""

    status = 499


class NotThere(RequestRefused):
    """There is no such model."""

    status = 404


class TooLarge(RequestRefused):
    """The request has too many bytes or values."""

    status = 413


class QueueFull(RequestRefused):
    """Too many examples wait."""

    status = 429
    retry_secs = 1


class PredictionFailed(RequestRefused):
    """The model gives no predictions that can be sent."""

    status = 500


class NotReady(RequestRefused):
    """No model is loaded, or its rows cannot be read now."""

    status = 503
    retry_secs = 1


class TookTooLong(RequestRefused):
    """The predictions did not come in time."""

    status = 504
    retry_secs = 1
