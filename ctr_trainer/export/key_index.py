"""Where the row of a key stands, as arrays that a graph of stock operations searches by a few gathers."""

import dataclasses

import numba
import numpy as np

_LEAST_WINDOW = 16


@dataclasses.dataclass(frozen=True)
class KeyIndex:
    """Keys in buckets by their low bits, and of each key the number of its row.

        bucket(key) = key & mask      the bucket's keys stand at starts[bucket] ... starts[bucket] + window - 1

    Fingerprints are spread evenly over the buckets, of which there are between a half and one of the number of keys: of
    20 million keys the fullest bucket has 12. So a window of 16 finds each key, however large the table; where keys are
    spread worse, the window is as wide as the fullest bucket.

    Attributes:
      starts: int32[buckets]; int64 from 2^31 keys on.
      keys: int64[1 + n + window], by bucket; the first one and those behind the last are 0, no key.
      places: of each of `keys` its row, dtype as of `starts`; 0, the row of what has no row, for the key 0.
      window: at least the number of keys in the fullest bucket.
    """

    starts: np.ndarray
    keys: np.ndarray
    places: np.ndarray
    window: int

    @staticmethod
    def of(keys):
        """int64[n], distinct and not 0 -> the KeyIndex in which the row of `keys[i]` is i + 1."""
        count = len(keys)
        buckets = 1 << max(count.bit_length() - 1, 0)
        dtype = np.int32 if count + _LEAST_WINDOW < 1 << 31 else np.int64
        starts = np.zeros(buckets, dtype)
        window = max(_count(keys, starts), _LEAST_WINDOW)
        of_buckets, places = np.zeros(1 + count + window, np.int64), np.zeros(1 + count + window, dtype)
        _place(keys, starts, of_buckets, places)
        return KeyIndex(starts, of_buckets, places, window)

    @property
    def count(self):
        """n, the number of keys."""
        return len(self.keys) - 1 - self.window

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
def _place(keys, ends, of_buckets, places):
    """Fills the buckets from behind, so that `ends` becomes where each one starts."""
    mask = len(ends) - 1
    for i in range(len(keys) - 1, -1, -1):
        bucket = keys[i] & mask
        ends[bucket] -= 1
        of_buckets[ends[bucket]] = keys[i]
        places[ends[bucket]] = i + 1
