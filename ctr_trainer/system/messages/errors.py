"""Errors for the user to read, and the exit status of a command."""

import difflib
import errno
import inspect
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

# An error that the user can correct: the same command would end the same way.
REFUSED = 1
# Wrong flags.
USAGE = 2
# An unexpected error (EX_SOFTWARE of BSD's sysexits.h).
FAILED = 70
# A rank, a host or a service is lost or hangs: the same command may succeed later (EX_TEMPFAIL of sysexits.h).
LOST = 75
# SIGINT, SIGTERM.
INTERRUPTED, TERMINATED = 130, 143
# TensorFlow's errors contain lines about the graph, such as where the operation was created. `_OF_A_NODE` finds the
# text between these lines.
_OF_A_NODE = re.compile(r"^Node: '[^\n]*'\n(.*?)(?:\n\t ?\[\[|\n\nOriginal stack trace|\Z)", re.DOTALL | re.MULTILINE)
# Error messages of a store that is down, overloaded or cut off: S3 through pyarrow, Google Cloud Storage, HTTP servers.
_OUTAGE = re.compile(
    r"AWS Error (NETWORK_CONNECTION|INTERNAL_FAILURE|SERVICE_UNAVAILABLE|SLOW_DOWN|THROTTLING|REQUEST_TIMEOUT)"
    r"|\b(UNAVAILABLE|DEADLINE_EXCEEDED)\b|HTTP (response code|status):? 5\d\d"
)
_UNREACHABLE = (errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETUNREACH, errno.ENETDOWN)
# The user, and possibly a password, between the scheme and the host of a URL.
_IN_A_URL = re.compile(r"(rediss?://)[^\s'\"]*@|(://)[^\s'\"/]*@")
# Characters of data that could change a terminal or the direction of its text, except tabs and line breaks.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def masked(text: str) -> str:
    """Returns a text for a log or terminal: users and passwords of URLs are masked, control characters are escaped."""
    text = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)
    return _IN_A_URL.sub(r"\1\2***@", text) if "://" in text else text


def cut(text: str) -> str:
    """Returns a text from data for a message, with its length if it is cut after 200 characters."""
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text):,} characters)"


def listed(names: Iterable[str]) -> str:
    """Returns names from data for a message: on one line, long names cut, and at most 100 of them."""
    texts = [cut(name if name.isprintable() else ascii(name)) for name in names]
    return ", ".join(texts[:100]) + (f", ... ({len(texts):,} in all)" if len(texts) > 100 else "")


def followed(text: str, sentence: str) -> str:
    """Returns a message and a sentence after it, on a line of its own if the message ends with lines of a log."""
    text = text.rstrip()
    return f"{text}\n{sentence}" if "\n" in text else f"{text.rstrip('.')}. {sentence}"


class UserError(Exception):
    """An error that the user can correct: a wrong flag, file or row, or a lost service.

    The command line prints the message without a traceback. Therefore the message says what is wrong, where, and what
    to do. Users and passwords of URLs are masked in it.
    """

    def __str__(self) -> str:
        return masked(super().__str__())


class Lost(UserError):
    """A required rank, host or service is lost. When it is available again, the same command may resume."""


class ServiceLost(Lost):
    """The embedding service does not answer or was restarted; updates of rows since the last checkpoint are lost."""


class StoppedInOrder(UserError):
    """A signal has ended a training, after a complete step and with a checkpoint.

    `status`: the exit status of a process that ends with this error.
    """

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.status = 128 + number


def is_loss(error: BaseException | None) -> bool:
    """Whether an error reports a loss that may be over at the next start.

    An outage of a store, a timeout and a refused connection are losses, even if the error is only the cause of a
    `UserError` that names the file.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # Causes and contexts may form a cycle.
        seen.add(id(error))
        if isinstance(error, (Lost, ConnectionError, TimeoutError)):
            return True
        if isinstance(error, OSError) and (error.errno in _UNREACHABLE or _OUTAGE.search(str(error))):
            return True
        error = error.__cause__ or error.__context__
    return False


def status_of(error: BaseException) -> int:
    """Returns the exit status of a process that ends with an exception."""
    if isinstance(error, StoppedInOrder):
        return error.status
    if isinstance(error, (UserError, OSError)) and is_loss(error):
        return LOST
    return REFUSED if isinstance(error, UserError) else FAILED


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean NAME?` with the known name that is most similar to `name`; "" if none is similar."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {listed(found)}?" if found else ""


class NamedArguments:
    """The base class of classes whose constructor names the argument that is most similar to an unknown one."""

    def __new__(cls, *_: Any, **given: Any) -> "Self":
        known = inspect.signature(cls.__init__).parameters
        for name in given.keys() - known.keys():
            raise UserError(f"{cls.__name__}({name}=...): there is no such argument{did_you_mean(name, known)}")
        return super().__new__(cls)


def reason(error: BaseException) -> str:
    """Returns the message of an exception as one line, without the part about the graph in TensorFlow's errors."""
    text = str(error)
    found = _OF_A_NODE.search(text)
    lines = [line.strip() for line in (found.group(1) if found else text).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def diverged(what: str) -> UserError:
    """Returns the error of a diverged training, with advice. `what` is a clause such as `the loss of step 7 is nan`."""
    return UserError(
        f"{what}: the training diverged. Resume with a lower learning_rate and embedding_learning_rate, or with "
        "clip_norm; resume_from=STEP goes back to a checkpoint before the last one"
    )
