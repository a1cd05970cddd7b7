"""Arrays that grow in place, the reuse of freed memory, and the lock that keeps the users of a table's rows apart."""

import contextlib
import ctypes
import dataclasses
import fcntl
import mmap
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.system.messages.errors import UserError

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_FIRST_ROWS = 1024
_HUGE_PAGE = 2 << 20
# Of glibc's malloc.h, with the largest size that it takes for the second.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_ON_HEAP = 32 << 20


@dataclasses.dataclass(frozen=True)
class LockTimes:
    """What row locks have cost this process: seconds waited, seconds held, and how often a lock was taken."""

    waited: float = 0.0
    held: float = 0.0
    taken: int = 0

    def __add__(self, other: "LockTimes") -> "LockTimes":
        return LockTimes(self.waited + other.waited, self.held + other.held, self.taken + other.taken)


class RowLock:
    """A lock between the threads of a process and, with a file, between the processes that have it open.

    It ends with the process that holds it, so a worker that dies holds up no other. `file` is an open file, the same of
    all processes; None for a lock of this process alone.
    """

    def __init__(self, file: int | None = None) -> None:
        self._shared, self._alone = _Hold(self, fcntl.LOCK_SH), _Hold(self, fcntl.LOCK_EX)
        self._file, self._threads = file, threading.Lock()
        self._waited = self._held = self._taken = self._since = 0  # Nanoseconds; only the holder changes them.

    @property
    def times(self) -> LockTimes:
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


def as_int64(values: npt.ArrayLike) -> np.ndarray:
    return np.require(values, np.int64, ("C", "A"))


def as_float32(values: npt.ArrayLike) -> np.ndarray:
    return np.require(values, np.float32, ("C", "A"))


def keep_freed_memory(kept_bytes: int) -> None:
    """Has this process reuse the memory of large arrays in place of giving it back each time.

    A request's arrays otherwise come as fresh pages, whose faults take a tenth of the service's time, and half of a
    worker's in a sync. At most `kept_bytes` free bytes at the end of the heap are kept. Does nothing where the C
    library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP)


def _private_pages(size: int) -> mmap.mmap:
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)


class GrowableArray:
    """A C-contiguous array [capacity, *shape] whose first axis grows without a copy.

    It reserves address space for all rows that this process's memory could hold, and the kernel hands out pages at the
    first touch, so growth moves no row and doubles no memory. Where the reservation is refused (a limit on address
    space), growth doubles the array and copies it.

    Caveat: `array` is replaced when it grows by copying, so read it again after `reserve`.
    """

    def __init__(
        self,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...] = (),
        most_rows: int | None = None,
        pages: Callable[[int], mmap.mmap] | None = None,
    ) -> None:
        """Makes an array for at most `most_rows` rows, None for as many as fit into `memory_limits.memory_total`.

        `pages` is f(bytes) -> `mmap.mmap` of zeros, or OSError; by default anonymous memory of this process.
        """
        self._dtype = np.dtype(dtype)
        self._shape = tuple(shape)
        self._row_bytes = row_bytes(dtype, shape)
        self._most_rows = most_rows or max(memory_total() // self._row_bytes, 1)
        self._pages: mmap.mmap | None = None
        try:
            reserved = self._pages = (pages or _private_pages)(self._most_rows * self._row_bytes)
            with contextlib.suppress(AttributeError, OSError):  # Without transparent huge pages it is only slower.
                reserved.madvise(mmap.MADV_HUGEPAGE)
            self.array = np.frombuffer(reserved, self._dtype).reshape(-1, *self._shape)
        except (OSError, ValueError, MemoryError):
            if pages:
                raise
            self._pages = None
            self.array = np.zeros((0, *self._shape), self._dtype)

    def release(self, start: int, stop: int, free: int) -> None:
        """Gives the memory of the rows [start, stop) back, in whole pages; the rows must be zero, and stay so."""
        first, last = -(-start * self._row_bytes // _HUGE_PAGE), stop * self._row_bytes // _HUGE_PAGE
        if self._pages is not None and first < last:
            self._pages.madvise(free, first * _HUGE_PAGE, (last - first) * _HUGE_PAGE)

    def reserve(self, rows: int) -> None:
        """Makes room for `rows` rows; those that were there keep their values, new ones are zero at first touch.

        Raises:
          UserError: the rows need more memory than this process may have.
        """
        if rows <= len(self.array):
            return
        if rows > self._most_rows:
            raise UserError(
                f"{rows} rows of {self._row_bytes} bytes do not fit into the memory of this machine or cgroup "
                f"(room for {self._most_rows}): use more service shards, or fewer or narrower embeddings"
            )
        grown = np.zeros((min(max(rows, 2 * len(self.array), _FIRST_ROWS), self._most_rows), *self._shape), self._dtype)
        grown[: len(self.array)] = self.array
        self.array = grown


def row_bytes(dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> int:
    return np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))


class TableMemory:
    """Where a table's arrays lie: in memory of this process; or of several processes, see `shared_memory.SharedMemory`.

    Attributes:
      free: the `madvise` option with which `GrowableArray.release` frees pages of arrays that lie here.
    """

    free: int = getattr(mmap, "MADV_DONTNEED", 4)

    def array(
        self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...] = (), most_rows: int | None = None
    ) -> GrowableArray:
        """Returns an empty array of up to `most_rows` rows, or all that fit; `name` is unique among the arrays here."""
        return GrowableArray(dtype, shape, most_rows)

    def counts(self, name: str, size: int) -> np.ndarray:
        """Returns int64[size], zeros: the few numbers that go with the arrays."""
        return np.zeros(size, np.int64)

    def under(self, prefix: str) -> "TableMemory":
        """Returns the same memory, for arrays whose names begin with `prefix`."""
        return self

    def lock(self, name: str) -> RowLock:
        """Returns the lock of this name, which all processes that use this memory share; each process asks once."""
        return RowLock()
