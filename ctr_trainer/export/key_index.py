"""Where the row of a key stands, as arrays that a graph of stock operations searches by two gathers."""

import dataclasses

import numba
import numpy as np


@dataclasses.dataclass(frozen=True)
class KeyIndex:
    """Keys in buckets by their low bits, and of each key the number of its row.

        bucket(key) = key & mask      all the bucket's keys stand in the line line_of[bucket], among others'

    A line is as wide as the fullest bucket, and has as many buckets, one after the other, as fit. Fingerprints are
    spread evenly over the buckets, of which there are between a half and one of the number of keys: of 20 million keys
    the fullest bucket has 12, and 1 place in 20 is left empty.

    Attributes:
      line_of: int32[buckets]; int64 from 2^30 keys on.
      lines: int64[m, width + w], each `width` keys, then the bytes of their rows' numbers, of the dtype of `line_of`.
        An empty place has the key 0 and the row 0, that of what has no row.
      width: the keys of a line.
      count: the number of keys.
    """

    line_of: np.ndarray
    lines: np.ndarray
    width: int
    count: int

    @staticmethod
    def of(keys):
        """int64[n], distinct and not 0 -> the KeyIndex in which the row of `keys[i]` is i + 1."""
        count = len(keys)
        buckets = 1 << max(count.bit_length() - 1, 0)
        line_of = np.zeros(buckets, np.int32 if count < (1 << 30) else np.int64)
        free = np.zeros(buckets, line_of.dtype)  # Of each bucket: how many keys, then the next free place.
        fullest = _count(keys, free)
        width = fullest + fullest % 2  # Even, so that the numbers of int32 fill whole int64s.
        count_of_lines = _spread(free, line_of, width)
        lines = np.zeros((count_of_lines, width + width * line_of.itemsize // 8), np.int64)
        _place(keys, free, line_of, lines[:, :width], lines[:, width:].view(line_of.dtype))
        return KeyIndex(line_of, lines, width, count)

    @property
    def mask(self):
        """The bits of a key that are the number of its bucket."""
        return len(self.line_of) - 1


@numba.njit(nogil=True, cache=True)
def _count(keys, counts):
    """Adds the number of keys in each bucket to `counts`. -> the most in one of them, at least 1."""
    mask, most = len(counts) - 1, 1
    for key in keys:
        counts[key & mask] += 1
        most = max(most, counts[key & mask])
    return most


@numba.njit(nogil=True, cache=True)
def _spread(free, line_of, width):
    """Gives each bucket its line, and in `free` its first place there instead of its number of keys. -> lines."""
    line = taken = 0
    for bucket in range(len(free)):
        count = free[bucket]
        if taken + count > width:
            line, taken = line + 1, 0
        line_of[bucket], free[bucket] = line, taken
        taken += count
    return line + 1


@numba.njit(nogil=True, cache=True)
def _place(keys, free, line_of, keys_there, rows_there):
    mask = len(free) - 1
    for i in range(len(keys)):
        bucket = keys[i] & mask
        line, place = line_of[bucket], free[bucket]
        free[bucket] += 1
        keys_there[line, place], rows_there[line, place] = keys[i], i + 1
