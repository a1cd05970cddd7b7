"""Arrays that grow in place, and memory that is kept once it is had."""

import ctypes
import mmap
import os

import numpy as np

from ctr_trainer.errors import UserError

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
_FIRST_ROWS = 1024
_SMALL_BYTES = 1 << 20
_HUGE_PAGE = 2 << 20
# Of glibc's malloc.h, with the largest size that it takes for the second.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT_BYTES, _LARGEST_ON_HEAP = 1 << 30, 32 << 20


def keep_freed_memory():
    """Has this process reuse the memory of large arrays, up to 1 GiB, in place of giving it back each time.

    A request's arrays otherwise come as fresh pages, whose faults take a tenth of the service's time. Does nothing
    where the C library is not glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_ON_HEAP)


def _advise_huge_pages(pages):
    try:
        pages.madvise(mmap.MADV_HUGEPAGE)
    except (AttributeError, OSError):
        pass  # A kernel without transparent huge pages: only slower.


def zeros(count, dtype):
    """-> an array of `count` zeros, whose memory comes at its first touch and can be given back in parts."""
    nbytes = count * np.dtype(dtype).itemsize
    if nbytes < _SMALL_BYTES:
        return np.zeros(count, dtype)
    try:
        pages = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:
        return np.zeros(count, dtype)
    _advise_huge_pages(pages)
    return np.frombuffer(pages, dtype)


def release(array, start, stop):
    """Gives back the memory of array[start:stop], which is zero then, of an array that `zeros` made, in whole pages."""
    pages = getattr(array.base, "obj", None)
    if hasattr(pages, "madvise"):
        first, last = -(-start * array.itemsize // _HUGE_PAGE), stop * array.itemsize // _HUGE_PAGE
        if first < last:
            pages.madvise(mmap.MADV_DONTNEED, first * _HUGE_PAGE, (last - first) * _HUGE_PAGE)


class GrowableArray:
    """A C-contiguous array [capacity, *shape] whose first axis grows without a copy.

    It reserves address space for as many rows as the machine's memory could hold, and the kernel hands out pages at
    the first touch, so growth moves no row and doubles no memory. Where the reservation is refused (a limit on
    address space), growth doubles the array and copies it.

    Caveat: `array` is replaced when it grows by copying, so take it anew after `reserve`.
    """

    def __init__(self, dtype, shape=(), reserve_bytes=None):
        """`reserve_bytes` bounds the array, by default the machine's memory."""
        self._dtype = np.dtype(dtype)
        self._shape = tuple(shape)
        self._row_bytes = self._dtype.itemsize * int(np.prod(self._shape, dtype=np.int64))
        limit = reserve_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._most_rows = max(limit // self._row_bytes, 1)
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            pages = mmap.mmap(-1, self._most_rows * self._row_bytes, flags)
            _advise_huge_pages(pages)
            self.array = np.frombuffer(pages, self._dtype).reshape(-1, *self._shape)
        except (OSError, ValueError, MemoryError):
            self.array = np.zeros((0, *self._shape), self._dtype)

    def reserve(self, rows):
        """Makes room for `rows` rows; those that were there keep their values, new ones are zero at first touch.

        Raises:
          UserError: more rows than the machine's memory holds.
        """
        if rows <= len(self.array):
            return
        if rows > self._most_rows:
            raise UserError(
                f"{rows} rows of {self._row_bytes} bytes do not fit into this machine's memory "
                f"(room for {self._most_rows}): use more service shards, or fewer or narrower embeddings"
            )
        grown = np.zeros((min(max(rows, 2 * len(self.array), _FIRST_ROWS), self._most_rows), *self._shape), self._dtype)
        grown[: len(self.array)] = self.array
        self.array = grown
