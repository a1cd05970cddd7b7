"""Writes the output of the workers and of the launcher, without waiting for who reads it."""

import collections
import contextlib
import io
import threading
from typing import TextIO

_MOST_BYTES = 16 << 20
_CLOSE_SECONDS = 5.0


class Outlet:
    """Writes lines from a thread, so that nobody waits for a reader that stands still, as a paused pager does.

    At most `most_bytes` are kept for a reader that stands still. Further lines are dropped, and their number is written
    in their place as soon as the reader reads again.

    Args:
      most_bytes: of the lines that wait.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._lines: collections.deque[tuple[TextIO, bytes]] = collections.deque()
        self._bytes = self._dropped = 0
        self._is_closing, self._changed = False, threading.Condition()
        self._thread = threading.Thread(target=self._work, name="output", daemon=True)
        self._thread.start()

    def write(self, stream: TextIO, line: bytes) -> None:
        """Has a line, with its newline, written to a stream; returns at once."""
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
        """Writes what waits, for so many seconds at most."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def of(self, stream: TextIO) -> "TextIO":
        """Returns a text stream whose lines come to `stream` through this outlet."""
        return _Lines(self, stream)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closing)
                if not self._lines:
                    return
                stream, line = self._lines.popleft()
            with contextlib.suppress(OSError, ValueError):  # If nobody reads any more, the training continues.
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
