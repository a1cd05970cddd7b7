"""The format of log lines: time, level, place in the code, message."""

import contextlib
import datetime
import json
import logging
import sys
import time
import warnings
from collections.abc import Iterator

from ctr_trainer.system.messages.errors import masked

FORMATS = ("plain", "json")
_NAME = "ctr_trainer"
_LINE = "%(asctime)s - %(levelname)s [%(filename)s:%(lineno)d - %(funcName)s] - %(message)s"


def event_text(seconds: float) -> str:
    """Formats a time, in seconds since 1970, as a text such as 2026-11-23T10:00:04Z; "none" for 0."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds)) if seconds else "none"


def install(form: str = "plain", rank: int | None = None, warnings_only: bool = False) -> None:
    """Writes the log of this process to standard error, line by line. Another call changes the format.

        2024-10-02 00:21:29,534 - INFO [log_hooks.py:45 - take] - current lr: 0.050000

    If the program has set up its own logging, nothing changes.

    Args:
      form: one of `FORMATS`. `json` writes one object per line: `time` (ISO 8601 with milliseconds), `level`, `file`,
        `line`, `function`, `rank`, `message`, and `exception` if there is one.
      rank: rank of this worker; None if this process is not a worker.
      warnings_only: whether to leave out lines that are neither warnings nor errors.
    """
    root = logging.getLogger()
    if root.handlers and _installed() is None:
        return
    handler = _installed() or logging.StreamHandler(sys.stderr)
    handler.set_name(_NAME)
    handler.setFormatter(_Json(rank) if form == "json" else _Plain(_LINE))
    if handler not in root.handlers:
        root.addHandler(handler)
        logging.captureWarnings(True)
        # TensorFlow adds this handler if it is imported before a log exists. The handler would print each line twice.
        logging.getLogger("tensorflow").handlers.clear()
    root.setLevel(logging.INFO)
    # The handler has this level too, because TensorFlow's logger has a level of its own.
    handler.setLevel(logging.WARNING if warnings_only else logging.INFO)


@contextlib.contextmanager
def restored() -> Iterator[None]:
    """Restores after the block what it changes in the loggers of this process and of TensorFlow, as in a notebook."""
    loggers, shown = (logging.getLogger(), logging.getLogger("tensorflow")), warnings.showwarning
    before = [(each.level, each.handlers[:], each.filters[:]) for each in loggers]
    installed = _installed()
    form = (installed.level, installed.formatter) if installed else None
    try:
        yield
    finally:
        for logger, (level, handlers, filters) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.handlers[:], logger.filters[:] = handlers, filters
        if installed and form:
            installed.level, installed.formatter = form
        if warnings.showwarning is not shown:
            logging.captureWarnings(False)


def installed_form() -> str:
    """Returns the installed format, one of `FORMATS`."""
    handler = _installed()
    return "json" if handler is not None and isinstance(handler.formatter, _Json) else "plain"


def last_line(text: str, level: int = logging.ERROR) -> str:
    """Returns the last line of a command: the text or, in the format `json`, an object as for all lines.

    The caller writes the line directly, not through the log, because a thread that hangs may hold the log's lock.

    `level`: ERROR for a command that has failed. In the format `plain`, the line then begins with `error: `.
    """
    handler = _installed()
    if handler is None or installed_form() == "plain":
        return f"error: {text}" if level == logging.ERROR else text
    caller = sys._getframe(1)
    code = caller.f_code
    record = logging.LogRecord(__name__, level, code.co_filename, caller.f_lineno, text, (), None, func=code.co_name)
    return handler.format(record)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return masked(super().format(record))


class _Json(logging.Formatter):
    def __init__(self, rank: int | None) -> None:
        super().__init__()
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "file": record.filename,
            "line": record.lineno,
            "function": record.funcName,
            "rank": self._rank,
            "message": masked(record.getMessage()),
        }
        if record.exc_info:
            line["exception"] = masked(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


def _installed() -> logging.StreamHandler | None:
    """Returns the handler that `install` has added; None if there is none."""
    found = (handler for handler in logging.getLogger().handlers if handler.name == _NAME)
    return next((handler for handler in found if isinstance(handler, logging.StreamHandler)), None)


class Seldom:
    """Logs at most one warning in `seconds`, and counts the warnings that it omits."""

    def __init__(self, log: logging.Logger, seconds: float = 10.0) -> None:
        self._log, self._seconds, self._next, self._left_out = log, seconds, 0.0, 0

    def warning(self, text: str, *arguments: object) -> None:
        """Logs a warning, or only counts it if the last one was logged less than `seconds` ago."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        more = f" ({self._left_out} such lines were left out)" if self._left_out else ""
        self._next, self._left_out = now + self._seconds, 0
        self._log.warning(f"{text}{more}", *arguments, stacklevel=2)


def format_seconds(seconds: float) -> str:
    """Formats a duration in seconds: `45 s`, `2 min 10 s`, `1 h 5 min`, `3 d 4 h`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
