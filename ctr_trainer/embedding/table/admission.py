"""Decides which keys come often enough to get a row."""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.key_hash import KEYS, mix
from ctr_trainer.embedding.memory.growable_array import PrivateMemory

_LINES = 2
_WIDTH = 1 << 22


class Admission:
    """Counts the keys that have no row, in `2 * width` bytes for any number of keys.

    The counts are a count-min sketch with conservative update and `width` counters per line. A key's count is never
    below the number of times that it came, so no key waits too long. It is rarely above: only if other keys share both
    of its counters. To keep that rare, all counters are halved after each `width` counts.

    The counters go into snapshots. If a table gets another number of shards, the counters of several shards are merged:
    each becomes the largest of them, so that no key's count is too low.

    Source: Estan and Varghese, New Directions in Traffic Measurement and Accounting, SIGCOMM 2002.
    """

    def __init__(self, min_frequency, memory=None, width=_WIDTH):
        """
        Args:
          min_frequency: how often a key has to come before it gets a row.
          memory: where the counters lie, see `Table`; None for memory of its own.
          width: counters per line, a power of two.
        """
        self._min_frequency, memory = min_frequency, memory or PrivateMemory()
        counters = memory.array("admission", np.uint8, (width,), most_rows=_LINES)
        counters.reserve(_LINES)
        self._counters = counters.array[:_LINES]
        self._numbers = memory.counts("admission", 1)  # The counts since the counters were last halved.

    def admit(self, keys):
        """Counts keys, int64[U], distinct, without rows. -> bool[U]: whether each has come `min_frequency` times."""
        admitted = np.ones(len(keys), np.bool_)
        if self._min_frequency > 1:
            _count(self._counters, keys, self._min_frequency, admitted)
            self._numbers[0] += len(keys)
            if self._numbers[0] >= self._counters.shape[1]:
                self._counters >>= 1
                self._numbers[0] = 0
        return admitted

    def counts(self):
        """-> (uint8[2, width], a copy of the counters; int, the counts since the counters were last halved)."""
        return self._counters.copy(), int(self._numbers[0])

    def merge_counts(self, counters, counted):
        """Merges what `counts` returned, here or at another shard, into the counters."""
        np.maximum(self._counters, counters, out=self._counters)
        self._numbers[0] = max(self._numbers[0], counted)

    def clear(self):
        """Forgets all counts."""
        self._counters.fill(0)
        self._numbers[0] = 0


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
