"""Counts the distinct keys of a column."""

import numba
import numpy as np

_SMALLEST = 1 << 12


class DistinctCount:
    """An exact, growing set of int64 keys. Memory: 16 to 32 bytes per key. The key 0 does not count."""

    def __init__(self):
        self._slots = np.zeros(_SMALLEST, np.int64)
        self.count = 0

    def add(self, keys):
        """Adds the keys of an int64 array."""
        keys = np.ascontiguousarray(keys, np.int64)
        done = 0
        while True:
            done, self.count = _insert(self._slots, self.count, keys, done)
            if done == len(keys):
                return
            old, self._slots = self._slots, np.zeros(4 * len(self._slots), np.int64)
            _insert(self._slots, 0, old, 0)

    def merge(self, other):
        """Adds the keys of another DistinctCount."""
        self.add(other.keys())

    def keys(self):
        """-> int64[count], the distinct keys in no particular order."""
        return self._slots[self._slots != 0]


@numba.njit(nogil=True, cache=True)
def _insert(slots, count, keys, start):
    """Inserts keys[start:] until the set is half full. -> (place of the first key not inserted, distinct keys)"""
    mask = len(slots) - 1
    for i in range(start, len(keys)):
        if 2 * count >= len(slots):
            return i, count
        key = keys[i]
        if key == 0:
            continue
        at = (key ^ (key >> 32)) & mask  # Keys are hashes already, so this spreads them evenly.
        while slots[at] != key:
            if slots[at] == 0:
                slots[at] = key
                count += 1
                break
            at = (at + 1) & mask
    return len(keys), count
