"""Arrays that grow in place, the memory that they lie in, and the reuse of freed memory."""

import ctypes
import mmap

import numpy as np

from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.memory.row_lock import RowLock
from ctr_trainer.messages.errors import UserError

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_FIRST_ROWS = 1024
_HUGE_PAGE = 2 << 20
# Of glibc's malloc.h, with the largest size that it takes for the second.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_ON_HEAP = 32 << 20


def as_int64(values):
    return np.require(values, np.int64, ("C", "A"))


def as_float32(values):
    return np.require(values, np.float32, ("C", "A"))


def keep_freed_memory(kept_bytes):
    """Has this process reuse the memory of large arrays in place of giving it back each time.

    A request's arrays otherwise come as fresh pages, whose faults take a tenth of the service's time, and half of a
    worker's in a sync. Does nothing where the C library is not glibc.

    Args:
      kept_bytes: the free memory at the end of the heap that is kept at most.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, kept_bytes)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP)


def _private_pages(size):
    return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)


def _advise_huge_pages(pages):
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except (AttributeError, OSError):
        pass  # A kernel without transparent huge pages: only slower.


class GrowableArray:
    """A C-contiguous array [capacity, *shape] whose first axis grows without a copy.

    It reserves address space for all rows that this process's memory could hold, and the kernel hands out pages at the
    first touch, so growth moves no row and doubles no memory. Where the reservation is refused (a limit on address
    space), growth doubles the array and copies it.

    Caveat: `array` is replaced when it grows by copying, so take it anew after `reserve`.
    """

    def __init__(self, dtype, shape=(), reserve_bytes=None, pages=None):
        """
        Args:
          dtype, shape: of a row.
          reserve_bytes: bounds the array; by default `memory_limits.memory_total`.
          pages: f(bytes) -> `mmap.mmap` of zeros, or OSError; by default anonymous memory of this process.
        """
        self._dtype = np.dtype(dtype)
        self._shape = tuple(shape)
        self._row_bytes = row_bytes(dtype, shape)
        limit = reserve_bytes or memory_total()
        self._most_rows = max(limit // self._row_bytes, 1)
        try:
            self._pages = (pages or _private_pages)(self._most_rows * self._row_bytes)
            _advise_huge_pages(self._pages)
            self.array = np.frombuffer(self._pages, self._dtype).reshape(-1, *self._shape)
        except (OSError, ValueError, MemoryError):
            if pages:
                raise
            self._pages = None
            self.array = np.zeros((0, *self._shape), self._dtype)

    def release(self, start, stop, free):
        """Gives the memory of the rows [start, stop) back, in whole pages; the rows must be zero, and stay so.

        Args:
          start, stop: the first row, and the row behind the last.
          free: the `mmap.MADV_*` that frees such pages, see `PrivateMemory`.
        """
        first, last = -(-start * self._row_bytes // _HUGE_PAGE), stop * self._row_bytes // _HUGE_PAGE
        if self._pages is not None and first < last:
            self._pages.madvise(free, first * _HUGE_PAGE, (last - first) * _HUGE_PAGE)

    def reserve(self, rows):
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


def row_bytes(dtype, shape=()):
    """-> bytes of a row of this dtype and shape."""
    return np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))


class PrivateMemory:
    """The memory of a table that only this process uses; `shared_memory.SharedMemory` is for several processes.

    Attributes:
      free: what `GrowableArray.release` takes for arrays that lie here.
    """

    free = getattr(mmap, "MADV_DONTNEED", 4)

    def array(self, name, dtype, shape=(), most_rows=None):
        """-> an empty GrowableArray of up to `most_rows`, or all that fit; `name` is unique among the arrays here."""
        return GrowableArray(dtype, shape, most_rows and most_rows * row_bytes(dtype, shape))

    def counts(self, name, size):
        """-> int64[size], zeros: the few numbers that go with the arrays."""
        return np.zeros(size, np.int64)

    def under(self, prefix):
        """-> the same memory: names of arrays are of one table here."""
        return self

    def lock(self, name):
        """-> RowLock of the threads of this process."""
        return RowLock()
