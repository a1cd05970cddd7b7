"""Where the row of a key stands, as arrays that a graph of stock operations searches by a few gathers."""

import dataclasses

import numba
import numpy as np

LINE = 8  # Keys in 64 bytes: what a processor reads at once.
_LEAST_IN_A_BUCKET = 16


@dataclasses.dataclass(frozen=True)
class KeyIndex:
    """Keys in buckets by their low bits, and of each key the number of its row.

        bucket(key) = key & mask      the bucket's keys stand one after the other, from the place starts[bucket] on

    and are within the `lines` lines of 8 keys from that of its start on. Fingerprints are spread evenly over the
    buckets, of which there are between a half and one of the number of keys: of 20 million keys the fullest bucket has
    12. So 3 lines hold any bucket, however large the table; where keys are spread worse, as many as the fullest needs.

    Attributes:
      starts: int32[buckets]; int64 from 2^31 keys on.
      keys: int64[m, 8], by bucket; the first one and those behind the last are 0, no key.
      places: of each of `keys` its row, [8 m], dtype as of `starts`; 0, the row of what has no row, for the key 0.
      lines: how many lines a bucket may reach over.
      count: the number of keys.
    """

    starts: np.ndarray
    keys: np.ndarray
    places: np.ndarray
    lines: int
    count: int

    @staticmethod
    def of(keys):
        """int64[n], distinct and not 0 -> the KeyIndex in which the row of `keys[i]` is i + 1."""
        count = len(keys)
        buckets = 1 << max(count.bit_length() - 1, 0)
        dtype = np.int32 if count < (1 << 31) - (1 << 20) else np.int64
        starts = np.zeros(buckets, dtype)
        fullest = max(_count(keys, starts), _LEAST_IN_A_BUCKET)
        lines = -(-(LINE - 1 + fullest) // LINE)
        in_lines = np.zeros(((1 + count) // LINE + 1 + lines, LINE), np.int64)
        places = np.zeros(in_lines.size, dtype)
        _place(keys, starts, in_lines.reshape(-1), places)
        return KeyIndex(starts, in_lines, places, lines, count)

    @property
    def mask(self):
        """The bits of a key that are the number of its bucket."""
        return len(self.starts) - 1


@numba.njit(nogil=True, cache=True)
def _count(keys, ends):
    """Sets `ends` to where each bucket's keys end. -> the number of keys in the fullest one."""
    mask, fullest, end = len(ends) - 1, 0, 1
    for key in keys:
        ends[key & mask] += 1
    for bucket in range(len(ends)):
        fullest = max(fullest, ends[bucket])
        end += ends[bucket]
        ends[bucket] = end
    return fullest


@numba.njit(nogil=True, cache=True)
def _place(keys, ends, in_lines, places):
    """Fills the buckets from behind, so that `ends` becomes where each one starts."""
    mask = len(ends) - 1
    for i in range(len(keys) - 1, -1, -1):
        bucket = keys[i] & mask
        ends[bucket] -= 1
        in_lines[ends[bucket]] = keys[i]
        places[ends[bucket]] = i + 1
