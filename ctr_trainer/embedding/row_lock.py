"""What keeps the users of a table's rows from each other."""

import contextlib
import fcntl
import threading


class RowLock:
    """A lock between the threads of a process and, with a file, between the processes that have it open.

    It ends with the process that holds it, so a worker that dies holds up no other.

    Args:
      file: an open file, the same of all processes; None for a lock of this process alone.
    """

    def __init__(self, file=None):
        self._file, self._threads = file, threading.Lock()

    def shared(self):
        """-> context manager: held along with other processes that read, but not with another thread of this one."""
        return self._held(fcntl.LOCK_SH)

    def alone(self):
        """-> context manager: held by no other process and no other thread."""
        return self._held(fcntl.LOCK_EX)

    @contextlib.contextmanager
    def _held(self, how):
        with self._threads:
            if self._file is None:
                yield
                return
            # Threads share an open file's lock: one that asked for another kind would change it under the others.
            fcntl.flock(self._file, how)
            try:
                yield
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
