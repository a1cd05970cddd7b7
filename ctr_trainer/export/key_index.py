"""The number of each key's row, in arrays that a graph of stock operations searches by two gathers."""

import dataclasses

import numba
import numpy as np


@dataclasses.dataclass(frozen=True)
class KeyIndex:
    """Keys in buckets by their low bits, and the number of each key's row.

        bucket(key) = key & mask      all keys of a bucket stand in the line line_of[bucket], beside other buckets' keys

    A line has as many places as the fullest bucket has keys, and holds as many whole buckets as fit. The number of
    buckets is between half the number of keys and the number of keys, and fingerprints are spread evenly over them.
    With 20 million keys the fullest bucket has 12 keys, and 1 place in 20 is empty.

    Attributes:
      line_of: int32[buckets], the line of each bucket; int64 from 2^30 keys on.
      lines: int64[m, width + w]. Each line has `width` keys, then the bytes of the numbers of their rows, in the dtype
        of `line_of`. An empty place has the key 0 and the row number 0, which means no row.
      width: number of keys per line.
      count: number of keys.
    """

    line_of: np.ndarray
    lines: np.ndarray
    width: int
    count: int

    @staticmethod
    def of(keys):
        """int64[n], distinct keys, none 0 -> the KeyIndex in which the row of `keys[i]` is i + 1."""
        count = len(keys)
        buckets = 1 << max(count.bit_length() - 1, 0)
        line_of = np.zeros(buckets, np.int32 if count < (1 << 30) else np.int64)
        free = np.zeros(buckets, line_of.dtype)  # Per bucket: first its number of keys, later its next free place.
        fullest = _count(keys, free)
        width = fullest + fullest % 2  # An even width, so that int32 row numbers fill whole int64s.
        count_of_lines = _spread(free, line_of, width)
        lines = np.zeros((count_of_lines, width + width * line_of.itemsize // 8), np.int64)
        _place(keys, free, line_of, lines[:, :width], lines[:, width:].view(line_of.dtype))
        return KeyIndex(line_of, lines, width, count)

    @property
    def mask(self):
        """The bit mask whose bits of a key are the number of the key's bucket."""
        return len(self.line_of) - 1


@numba.njit(nogil=True, cache=True)
def _count(keys, counts):
    """Adds the number of keys in each bucket to `counts`. -> the number of keys in the fullest bucket, at least 1."""
    mask, most = len(counts) - 1, 1
    for key in keys:
        counts[key & mask] += 1
        most = max(most, counts[key & mask])
    return most


@numba.njit(nogil=True, cache=True)
def _spread(free, line_of, width):
    """Gives each bucket its line, and replaces its number of keys in `free` by its first place. -> number of lines."""
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
