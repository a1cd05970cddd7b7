"""Arrays that grow in place, the reuse of freed memory, and the lock that guards a table's rows."""

import contextlib
import ctypes
import fcntl
import mmap
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import numpy.typing as npt

from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.system.messages.errors import UserError

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_FIRST_ROWS = 1024
MOST_BUCKETS = 1 << 32  # Of a table's index. So no array of the table has more elements.
_HUGE_PAGE = 2 << 20
# Options of `mallopt` in glibc's malloc.h, and the largest value that glibc accepts for M_MMAP_THRESHOLD.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_ON_HEAP = 32 << 20


class RowLock:
    """A lock between the threads of a process and, with the open file `file`, between the processes that have it open.

    The kernel releases the lock when the process that holds it ends, so a dead worker does not block the others.
    """

    def __init__(self, file: int | None = None) -> None:
        self._shared, self._alone = _Hold(self, fcntl.LOCK_SH), _Hold(self, fcntl.LOCK_EX)
        self._file, self._threads = file, threading.Lock()

    def shared(self) -> AbstractContextManager[None]:
        """Returns a context manager that other processes may hold at the same time, but no other thread of this one."""
        return self._shared

    def alone(self) -> AbstractContextManager[None]:
        """Returns a context manager that excludes all other processes and threads."""
        return self._alone

    def _take(self, how: int) -> None:
        self._threads.acquire()
        if self._file is not None:
            try:
                # The threads share the process's lock on an open file: a second thread would change the mode for all.
                fcntl.flock(self._file, how)
            except BaseException:
                self._threads.release()
                raise

    def _give_back(self) -> None:
        try:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            self._threads.release()


class _Hold:
    """A context manager of a lock. It is a class because a generator is slower and each step enters several locks."""

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
    """Makes this process reuse the memory of freed large arrays, at most `kept_bytes`; does nothing without glibc.

    Otherwise the arrays of each request lie in fresh pages, and page faults take a tenth of the service's time and half
    of a worker's time in a sync.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP)


class GrowableArray:
    """A C-contiguous array [capacity, *shape] whose first axis grows without a copy.

    The array reserves address space for all rows that could fit into this process's memory, at most `MOST_BUCKETS`, and
    the kernel allocates a page at its first access. So growth moves no rows and needs no second copy. If the
    reservation fails (a limit on address space), the array grows by doubling and copying.

    Caveat: `array` is replaced when it grows by copying, so read it again after `reserve`.
    """

    def __init__(
        self,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...] = (),
        most_rows: int | None = None,
        pages: Callable[[int], mmap.mmap] | None = None,
    ) -> None:
        """Makes an array for `most_rows` rows, None for all that fit, in the `mmap.mmap` of zeros pages(bytes)."""
        self._dtype = np.dtype(dtype)
        self._shape = tuple(shape)
        self._row_bytes = row_bytes(dtype, shape)
        self._most_rows = most_rows or min(max(memory_total() // self._row_bytes, 1), MOST_BUCKETS)
        self._pages: mmap.mmap | None = None
        try:
            size, flags = self._most_rows * self._row_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            reserved = self._pages = pages(size) if pages else mmap.mmap(-1, size, flags)
            with contextlib.suppress(AttributeError, OSError):  # Huge pages only make it faster.
                reserved.madvise(mmap.MADV_HUGEPAGE)
            self.array = np.frombuffer(reserved, self._dtype).reshape(-1, *self._shape)
        except (OSError, ValueError, MemoryError):
            if pages:
                raise
            self._pages = None
            self.array = np.zeros((0, *self._shape), self._dtype)

    def release(self, start: int, stop: int, free: int) -> None:
        """Frees the whole huge pages within rows [start, stop). The rows in these pages read as zeros afterwards."""
        first, last = -(-start * self._row_bytes // _HUGE_PAGE), stop * self._row_bytes // _HUGE_PAGE
        if self._pages is not None and first < last:
            self._pages.madvise(free, first * _HUGE_PAGE, (last - first) * _HUGE_PAGE)

    def reserve(self, rows: int) -> None:
        """Makes room for `rows` rows, new ones zero; raises UserError if the memory does not suffice."""
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
    """The memory of a table's arrays: private to this process, or shared, see `shared_memory.SharedMemory`.

    `free`: the `madvise` option with which `GrowableArray.release` frees pages of these arrays.
    """

    free: int = getattr(mmap, "MADV_DONTNEED", 4)

    def array(
        self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...] = (), most_rows: int | None = None
    ) -> GrowableArray:
        """Returns an empty array for `most_rows` rows; None for as many as fit. `name` must be unique here."""
        return GrowableArray(dtype, shape, most_rows)

    def counts(self, name: str, size: int) -> np.ndarray:
        """Returns int64[size] of zeros, for the few counters that accompany the arrays."""
        return np.zeros(size, np.int64)

    def under(self, prefix: str) -> "TableMemory":
        """Returns a view of this memory that adds `prefix` to the names of its arrays."""
        return self

    def lock(self, name: str) -> RowLock:
        """Returns the lock `name`, shared by all processes that use this memory; call it once per process."""
        return RowLock()
