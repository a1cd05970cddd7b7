"""Forwards the output of the workers without blocking, and determines from this output why they ended."""

import collections
import contextlib
import dataclasses
import enum
import io
import json
import os
import re
import signal
import threading
from typing import TextIO, cast

from ctr_trainer.ranks import last_words
from ctr_trainer.system.messages import errors

_OF_A_WORKER = re.compile(r"(?:.*\r)?\[(\d+)\]<(stdout|stderr)>:(.*)", re.DOTALL)
_EXIT = re.compile(r"Process (\d+) exit with status code (\d+)\.")
_ERROR, _STOPPED = "error: ", "stopped by "
_TERMINATED, _OF_A_SIGNAL = 128 + signal.SIGTERM, 128
_MOST_BYTES = 16 << 20
_CLOSE_SECONDS = 5.0


class Kind(enum.Enum):
    """The kind of an `Ending`."""

    FINISHED = "finished"
    LOST = "lost"  # A rank, a host or a service is lost or hangs.
    FAILED = "failed"  # An unexpected error.
    REFUSED = "refused"  # An error that the user can correct.
    CHANGED = "changed"  # The launcher has stopped the workers in order to start them on other hosts.


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of an `Attempt`.

    Attributes:
      reason: sentence, without its full stop.
      rank: the first rank that failed; None if no rank failed, or if it is unknown.
    """

    kind: Kind
    reason: str
    rank: int | None = None


class Output:
    """Determines from the output of `horovodrun` how its workers ended.

    Attributes:
      exits: list of (rank, status) of the workers that ended with a nonzero status, in chronological order.
      said: the last error message of a worker, or the reason why it stopped; "" for none.
      last: the last line of horovodrun itself; "" for none.
    """

    def __init__(self) -> None:
        self.exits: list[tuple[int, int]] = []
        self.said = self.last = ""

    def take(self, line: str) -> None:
        """Processes a line, without its newline."""
        if found := _OF_A_WORKER.fullmatch(line):
            self.said = _last_words(found[3]) or self.said
        elif found := _EXIT.search(line):
            self.exits.append((int(found[1]), int(found[2])))
        elif line.strip():
            self.last = line.strip()

    def ending(self, status: int) -> Ending:
        """Returns the `Ending` for the exit status of `horovodrun`."""
        if status == 0:
            return Ending(Kind.FINISHED, "finished")
        # Workers that horovodrun stopped because another worker ended are not the cause.
        own = [exit for exit in self.exits if exit[1] != _TERMINATED] or self.exits
        if not own:
            return Ending(
                Kind.LOST, self.said or f"horovodrun ended with status {status}: {self.last or 'it printed nothing'}"
            )
        kinds = [_KINDS.get(status, Kind.LOST) for _, status in own]
        kind = next(each for each in (Kind.REFUSED, Kind.LOST, Kind.FAILED) if each in kinds)
        # The cause is a rank that was killed or whose host is lost, not a rank that reports the loss.
        silent = [rank for rank, status in own if status not in _KINDS]
        first, status = own[0]
        rank: int | None = first
        if kind is Kind.LOST:
            rank = silent[0] if silent else None
        return Ending(kind, self.said or f"rank {rank} ended {_how(status)}", rank)


_KINDS = {
    errors.REFUSED: Kind.REFUSED,
    errors.USAGE: Kind.REFUSED,
    errors.FAILED: Kind.FAILED,
    errors.LOST: Kind.LOST,
}


def _last_words(text: str) -> str:
    """Returns the reason for the end from a worker's line, plain or JSON; "" if the line has none."""
    if text.startswith((_ERROR, _STOPPED)):
        return text.removeprefix(_ERROR).rstrip()
    if text.startswith("{"):
        try:
            values = json.loads(text)
        except ValueError:
            return ""
        # Errors of other modules are skipped, because the training may continue after them.
        if isinstance(values, dict) and values.get("file") == os.path.basename(last_words.__file__):
            message = str(values.get("message", ""))
            return message if message.startswith(_STOPPED) or values.get("level") == "ERROR" else ""
    return ""


def _how(status: int) -> str:
    if status > _OF_A_SIGNAL:
        try:
            return f"by {signal.Signals(status - _OF_A_SIGNAL).name}"
        except ValueError:
            pass
    return f"with status {status}"


class Outlet:
    """Writes lines in a thread, so that a blocked reader, such as a paused pager, does not block the launcher.

    At most `most_bytes` are buffered. Further lines are dropped. When the reader continues, the number of dropped lines
    is written instead.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lines: collections.deque[tuple[TextIO, bytes]] = collections.deque()
        self._bytes = self._dropped = 0
        self._is_closing, self._changed = False, threading.Condition()
        self._thread = threading.Thread(target=self._work, name="output", daemon=True)
        self._thread.start()

    def write(self, stream: TextIO, line: bytes) -> None:
        """Queues a line, including its newline, for a stream. Does not block."""
        with self._changed:
            if self._bytes + len(line) > self._most_bytes:
                self._dropped += 1
                return
            if self._dropped:
                note = f"launch: dropped {self._dropped} lines, because nobody read this output\n".encode()
                self._lines.append((stream, note))
                self._bytes, self._dropped = self._bytes + len(note), 0
            self._lines.append((stream, line))
            self._bytes += len(line)
            self._changed.notify()

    def close(self, seconds: float = _CLOSE_SECONDS) -> None:
        """Writes the buffered output, for at most `seconds`."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def of(self, stream: TextIO) -> TextIO:
        """Returns a text stream that writes to `stream` through this outlet."""
        return cast(TextIO, _Lines(self, stream))  # `_Lines` has the methods that `print` and `logging` call.

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closing)
                if not self._lines:
                    return
                stream, line = self._lines.popleft()
            with contextlib.suppress(OSError, ValueError):  # If the reader has ended, the training continues.
                stream.buffer.write(line)
                stream.buffer.flush()
            with self._changed:
                self._bytes -= len(line)


class _Lines(io.TextIOBase):
    def __init__(self, outlet: Outlet, stream: TextIO) -> None:
        super().__init__()
        self._outlet, self._stream = outlet, stream

    def write(self, text: str) -> int:
        self._outlet.write(self._stream, text.encode(errors="backslashreplace"))
        return len(text)
