"""Identifies the rows of a service, so that a request reads and changes only the rows for which it was made."""

import contextlib
import threading
import uuid
from collections.abc import Iterator

from ctr_trainer.system.messages.errors import Lost

# The store works on a request for milliseconds.
_WAIT_SECONDS = 600


class Replaced(Exception):
    """A request was made for rows that have been replaced; the message gives the reason."""


class Restarted(Exception):
    """A request was made for the rows of a process that has ended."""


class Incarnation:
    """The name of a service's rows, which changes when the rows are replaced or another training takes the lease.

    This class is thread-safe.
    """

    def __init__(self) -> None:
        self._process = uuid.uuid4().hex
        self._number, self._why, self._under_way = 0, "", 0
        self._replacing = 0  # The number of blocks of `replaced` that wait or run.
        self._changed = threading.Condition()

    def __str__(self) -> str:
        return f"{self._process}.{self._number}"

    def check_process(self, expected: str | None) -> None:
        """Raises Restarted unless `expected`, an incarnation or None, is one of this process."""
        if expected is not None and str(expected).partition(".")[0] != self._process:
            raise Restarted()

    def check(self, expected: str | None) -> None:
        """Raises Restarted or Replaced unless `expected` is this incarnation, or None."""
        self.check_process(expected)
        if expected is not None and (expected != str(self) or self._replacing):
            raise Replaced(self._why)

    @contextlib.contextmanager
    def within(self, expected: str | None) -> Iterator[None]:
        """Checks `expected` as `check` does, then prevents replacement of the rows inside the block."""
        with self._changed:
            self.check(expected)
            self._under_way += 1
        try:
            yield
        finally:
            with self._changed:
                self._under_way -= 1
                self._changed.notify_all()

    @contextlib.contextmanager
    def replaced(self, why: str) -> Iterator[None]:
        """Runs the block, which replaces the rows, when no request runs and no other block replaces rows.

        `why` tells clients of the former rows the reason. Raises Lost if a request runs for too long.
        """
        with self._changed:
            self._replacing, self._why = self._replacing + 1, why
            if not self._changed.wait_for(lambda: not self._under_way, _WAIT_SECONDS):
                self._replacing -= 1  # The rows and their name do not change.
                raise Lost(f"a request has held the rows for {_WAIT_SECONDS} s; check whether the machine hangs")
            self._number, self._under_way = self._number + 1, 1
        try:
            yield
        finally:
            with self._changed:
                self._number += 1  # A client that connected meanwhile may have read incomplete rows.
                self._replacing, self._under_way = self._replacing - 1, 0
                self._changed.notify_all()
