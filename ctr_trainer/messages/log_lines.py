"""What a line of the log looks like: when, how important, from where in the code, and what."""

import datetime
import json
import logging
import os
import sys

FORMATS = ("plain", "json")
RANKS = ("all", "chief")
_NAME = "ctr_trainer"
_LINE = "%(asctime)s - %(levelname)s [%(filename)s:%(lineno)d - %(funcName)s] - %(message)s"


def install(form="plain", rank=None, ranks="all"):
    """Has the log of this process written to standard error, line by line; again with other arguments, in another form.

        2024-10-02 00:21:29,534 - INFO [learning_rate_hook.py:36 - after_step] - current lr: 0.050000

    A program that has set its own logging up keeps it.

    Args:
      form: of `FORMATS`; `json` writes one object a line: `time` (ISO 8601 with milliseconds), `level`, `file`, `line`,
        `function`, `rank`, `message`, and `exception` where there is one.
      rank: of this worker; None where this process is none.
      ranks: of `RANKS`; with `chief`, of other ranks than 0 only warnings and errors are written.
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
        # The one that TensorFlow adds where it is imported before there is a log: its lines would come twice.
        logging.getLogger("tensorflow").handlers.clear()
    root.setLevel(logging.INFO)
    # Not the logger's level: TensorFlow's has one of its own.
    handler.setLevel(logging.WARNING if ranks == "chief" and rank else logging.INFO)


def rank_of_this_process():
    """-> the rank that `horovodrun` has given to this process; 0 without it."""
    return int(os.environ.get("HOROVOD_RANK", 0))


def installed_form():
    """-> the form that is installed, of `FORMATS`."""
    handler = _installed()
    return "plain" if handler is None else handler.formatter.form


def error_line(text):
    """-> the line that a command ends with which fails: `error: TEXT`, or in the form `json` an object like all others.

    It goes around the log, whose lock a thread that hangs may hold.
    """
    if installed_form() == "plain":
        return f"error: {text}"
    caller = sys._getframe(1)
    code = caller.f_code
    record = logging.LogRecord(
        __name__, logging.ERROR, code.co_filename, caller.f_lineno, text, (), None, func=code.co_name
    )
    return _installed().format(record)


class _Plain(logging.Formatter):
    form = "plain"


class _Json(logging.Formatter):
    form = "json"

    def __init__(self, rank):
        super().__init__()
        self._rank = rank

    def format(self, record):
        line = {
            "time": datetime.datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "file": record.filename,
            "line": record.lineno,
            "function": record.funcName,
            "rank": self._rank,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def _installed():
    """-> the handler that `install` made; None without one."""
    return next((handler for handler in logging.getLogger().handlers if handler.name == _NAME), None)
