"""Which keys come often enough to get a row."""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.key_hash import KEYS, mix

_LINES = 2
_WIDTH = 1 << 22


class Admission:
    """Counts the keys that have no row, in `2 * width` bytes however many there are.

    A count-min sketch with conservative update (Estan and Varghese, SIGCOMM 2002) of `width` counters a line: a key
    counts never less than it came, so none waits too long, and rarely more, by keys that share both its counters. To
    keep it so, all counters are halved after each `width` counts.

    They go into snapshots. Of several, as where a table gets another number of shards, each counter is the largest,
    so still no key counts less than it came.
    """

    def __init__(self, min_frequency, width=_WIDTH):
        """`width` is a power of two."""
        self._min_frequency = min_frequency
        self._counters = np.zeros((_LINES, width), np.uint8)
        self._counted = 0

    def admit(self, keys):
        """int64[U] keys without a row, distinct -> bool[U]: for which of them this was the `min_frequency`-th time."""
        admitted = np.ones(len(keys), np.bool_)
        if self._min_frequency > 1:
            _count(self._counters, keys, self._min_frequency, admitted)
            self._counted += len(keys)
            if self._counted >= self._counters.shape[1]:
                self._counters >>= 1
                self._counted = 0
        return admitted

    def counts(self):
        """-> (uint8[2, width], a copy of the counters; how many counts there were since they were last halved)."""
        return self._counters.copy(), self._counted

    def merge_counts(self, counters, counted):
        """Takes in what `counts` gave, here or of another shard."""
        np.maximum(self._counters, counters, out=self._counters)
        self._counted = max(self._counted, counted)

    def clear(self):
        """Forgets all counts."""
        self._counters.fill(0)
        self._counted = 0


_COUNTERS = types.Array(types.uint8, 2, "C")
_ADMITTED = types.Array(types.boolean, 1, "C")


@numba.njit(types.void(_COUNTERS, KEYS, types.int64, _ADMITTED), nogil=True, cache=True)
def _count(counters, keys, minimum, admitted):
    mask = np.uint64(counters.shape[1] - 1)
    for i in range(keys.size):
        hashed = mix(~np.uint64(keys[i]))
        first, second = hashed & mask, (hashed >> np.uint64(32)) & mask
        count = min(counters[0, first], counters[1, second]) + 1
        admitted[i] = count >= minimum
        counters[0, first] = max(counters[0, first], min(count, 255))
        counters[1, second] = max(counters[1, second], min(count, 255))
