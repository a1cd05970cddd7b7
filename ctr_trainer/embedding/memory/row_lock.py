"""The lock that keeps the users of a table's rows from each other."""

import dataclasses
import fcntl
import threading
import time
from contextlib import AbstractContextManager


@dataclasses.dataclass(frozen=True)
class LockTimes:
    """What row locks have cost the threads of this process.

    Attributes:
      waited: seconds from asking for a lock to having it.
      held: seconds from having a lock to giving it back.
      taken: how often a lock was taken.
    """

    waited: float = 0.0
    held: float = 0.0
    taken: int = 0

    def __add__(self, other: "LockTimes") -> "LockTimes":
        return LockTimes(self.waited + other.waited, self.held + other.held, self.taken + other.taken)


class RowLock:
    """A lock between the threads of a process and, with a file, between the processes that have it open.

    It ends with the process that holds it, so a worker that dies holds up no other.

    Args:
      file: an open file, the same of all processes; None for a lock of this process alone.
    """

    def __init__(self, file: int | None = None) -> None:
        self._shared, self._alone = _Hold(self, fcntl.LOCK_SH), _Hold(self, fcntl.LOCK_EX)
        self._file, self._threads = file, threading.Lock()
        self._waited = self._held = self._taken = self._since = 0  # Nanoseconds; only the holder changes them.

    @property
    def times(self) -> LockTimes:
        """`LockTimes` so far, of this process."""
        return LockTimes(self._waited / 1e9, self._held / 1e9, self._taken)

    def shared(self) -> AbstractContextManager[None]:
        """Returns a context manager, held together with other processes that read, but not with threads of this one."""
        return self._shared

    def alone(self) -> AbstractContextManager[None]:
        """Returns a context manager, held by no other process and no other thread."""
        return self._alone

    def _take(self, how: int) -> None:
        asked = time.perf_counter_ns()
        self._threads.acquire()
        if self._file is not None:
            try:
                # Threads share the lock of an open file: a thread that asked for another kind would change it for all.
                fcntl.flock(self._file, how)
            except BaseException:
                self._threads.release()
                raise
        self._since = time.perf_counter_ns()
        self._waited += self._since - asked
        self._taken += 1

    def _give_back(self) -> None:
        self._held += time.perf_counter_ns() - self._since
        try:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._threads.release()


class _Hold:
    """A `with` of a lock: a class and no generator, since a step has several."""

    __slots__ = ("_how", "_lock")

    def __init__(self, lock: RowLock, how: int) -> None:
        self._lock, self._how = lock, how

    def __enter__(self) -> None:
        self._lock._take(self._how)

    def __exit__(self, *error: object) -> None:
        self._lock._give_back()
