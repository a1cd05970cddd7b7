"""The error of requests that get no predictions."""

import json
from typing import ClassVar

from ctr_trainer.system.messages.errors import UserError

_SHOWN = 80


class RequestRefused(UserError):
    """A request that gets no predictions. The message of the error is the answer.

    `status`: the HTTP status; 499 if the client disconnected, so that nobody reads the answer.

    `headers`: the HTTP headers that belong to the status.
    """

    _HEADERS: ClassVar[dict[int, dict[str, str]]] = {
        401: {"WWW-Authenticate": "Bearer"},
        **dict.fromkeys((429, 503, 504), {"Retry-After": "1"}),
    }

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status, self.headers = status, self._HEADERS.get(status, {})


def shown(value: object) -> str:
    """Returns a shortened value for a message. Lone surrogates, which JSON can contain, are shown as escapes."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        text = repr(value)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
