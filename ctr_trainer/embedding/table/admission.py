"""Admission: the count of how often each key without a row has come."""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.key_kernels import KEYS, kernel, mix
from ctr_trainer.embedding.memory.growable_array import TableMemory

_LINES, _WIDTH = 2, 1 << 22
_COUNTERS = types.Array(types.uint8, 2, "C")
_ADMITTED = types.Array(types.boolean, 1, "C")


class Admission:
    """Counts the keys that have no row, in `2 * width` bytes for any number of keys.

    The counts are a count-min sketch with conservative update, two lines and `width` counters per line. A key's count
    is too high only if other keys share both of its counters. To keep this rare, all counters are halved after every
    `width` counts. A key's count is never below the number of times that it came since the last halving.

    Snapshots contain the counters. If the number of shards changes, the counters of several shards are merged: each
    counter becomes their maximum, so that the merge makes no key's count too low.

    Source: Estan and Varghese, New Directions in Traffic Measurement and Accounting, SIGCOMM 2002.
    """

    def __init__(self, min_frequency: int, memory: TableMemory | None = None, width: int = _WIDTH) -> None:
        """Admits a key when it comes for the `min_frequency`-th time; `width` is a power of two."""
        self._min_frequency, memory = min_frequency, memory or TableMemory()
        counters = memory.array("admission", np.uint8, (width,), most_rows=_LINES)
        counters.reserve(_LINES)
        self._counters = counters.array[:_LINES]
        self._numbers = memory.counts("admission", 1)  # The number of counts since the last halving.

    def admit(self, keys: np.ndarray) -> np.ndarray:
        """Counts distinct keys without rows, int64[U]; returns bool[U], whether each came `min_frequency` times."""
        admitted = np.ones(len(keys), np.bool_)
        _count(self._counters, keys, self._min_frequency, admitted)
        self._numbers[0] += len(keys)
        if self._numbers[0] >= self._counters.shape[1]:
            self._counters >>= 1
            self._numbers[0] = 0
        return admitted

    def counts(self) -> tuple[np.ndarray, int]:
        """Returns (uint8[2, width], a copy of the counters; int, the number of counts since the last halving)."""
        return self._counters.copy(), int(self._numbers[0])

    def merge_counts(self, counters: np.ndarray, counted: int) -> None:
        """Merges the result of `counts`, of this or another shard, into the counters."""
        np.maximum(self._counters, counters, out=self._counters)
        self._numbers[0] = max(self._numbers[0], counted)

    def clear(self) -> None:
        self._counters.fill(0)
        self._numbers[0] = 0


@kernel(types.void(_COUNTERS, KEYS, types.int64, _ADMITTED))
def _count(counters: np.ndarray, keys: np.ndarray, minimum: int, admitted: np.ndarray) -> None:
    mask = np.uint64(counters.shape[1] - 1)
    for i in range(keys.size):
        hashed = mix(~np.uint64(keys[i]))
        first, second = hashed & mask, (hashed >> np.uint64(32)) & mask
        count = min(counters[0, first], counters[1, second]) + 1
        admitted[i] = count >= minimum
        counters[0, first] = max(counters[0, first], min(count, 255))
        counters[1, second] = max(counters[1, second], min(count, 255))
