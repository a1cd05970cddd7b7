"""Keeps batches and changes of the served record apart."""

import contextlib
import threading
from collections.abc import Callable, Iterator

_SECONDS = 60


class RecordGate:
    """Admits either any number of batches or one change of the record. A waiting change holds new batches back."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._batches = 0
        self._changing = False

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """A context manager around one batch."""
        with self._condition:
            self._wait(lambda: not self._changing, "the change to a newer record")
            self._batches += 1
        try:
            yield
        finally:
            with self._condition:
                self._batches -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def change(self) -> Iterator[None]:
        """A context manager around a change, for one thread at a time. It waits until all batches have ended."""
        with self._condition:
            self._changing = True
        try:
            with self._condition:
                self._wait(lambda: not self._batches, "the running batches")
            yield
        finally:
            with self._condition:
                self._changing = False
                self._condition.notify_all()

    def _wait(self, is_over: Callable[[], bool], what: str) -> None:
        if not self._condition.wait_for(is_over, _SECONDS):
            raise TimeoutError(f"{what} did not end within {_SECONDS} s")
