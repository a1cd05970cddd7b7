"""Estimates how many distinct keys many machines have seen, in little memory."""

import numpy as np

_SIZE = 1 << 14


class DistinctSketch:
    """The number of distinct int64 keys: exact below `size`, an estimate beyond that. The key 0 does not count.

    It keeps the `size` smallest keys. Keys are hashes, so if the largest of these is the share x of all numbers,
    there are about (size - 1) / x. The standard error is 1 / sqrt(size - 2): 0.8 %.

    Args:
      keys: int64 array.
      size: largest number of keys that are kept, 8 bytes each.

    Source: Bar-Yossef et al., Counting Distinct Elements in a Data Stream, 2002; Beyer et al., On Synopses for
    Distinct-Value Estimation, 2007.
    """

    def __init__(self, keys=(), size=_SIZE):
        self._size, self._smallest = size, np.empty(0, np.uint64)
        self.add(keys)

    def add(self, keys):
        """Adds the keys of an int64 array."""
        keys = np.asarray(keys, np.int64).view(np.uint64)
        self._smallest = np.union1d(self._smallest, keys[keys != 0])[: self._size]

    def merge(self, other):
        """Adds the keys of another DistinctSketch."""
        self._smallest = np.union1d(self._smallest, other._smallest)[: self._size]

    @property
    def count(self):
        if len(self._smallest) < self._size:
            return len(self._smallest)
        return round((self._size - 1) / (float(self._smallest[-1]) / 2.0**64))
