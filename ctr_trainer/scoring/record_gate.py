"""A gate between batches and the change of the record that they are scored with."""

import contextlib
import threading

_SECONDS = 60


class RecordGate:
    """Lets any number of batches in, or one change of the record alone. A change that waits holds new batches back."""

    def __init__(self):
        self._condition = threading.Condition()
        self._batches = 0
        self._changing = False

    @contextlib.contextmanager
    def batch(self):
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
    def change(self):
        """A context manager around a change; for one thread at a time. Waits until no batch is under way."""
        with self._condition:
            self._changing = True
        try:
            with self._condition:
                self._wait(lambda: not self._batches, "the batches under way")
            yield
        finally:
            with self._condition:
                self._changing = False
                self._condition.notify_all()

    def _wait(self, is_over, what):
        if not self._condition.wait_for(is_over, _SECONDS):
            raise TimeoutError(f"{what} did not end within {_SECONDS} s")
