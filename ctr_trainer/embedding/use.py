"""How often and how lately each row was trained, and which rows go first."""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index_kernels import KEYS, mix
from ctr_trainer.embedding.memory import GrowableArray

_UINT32 = types.Array(types.uint32, 1, "C", readonly=True)
_SCORES = types.Array(types.uint64, 1, "C")
_MOST = np.uint64(0xFFFFFFFFFFFFFFFF)


class Use:
    """8 bytes a slot: the step at which its row was last trained, and how often it was.

    Attributes:
      step: the clock, the global step that `Store.advance` told last.
    """

    def __init__(self):
        self.step = 0
        self._last = GrowableArray(np.uint32)
        self._frequency = GrowableArray(np.uint32)
        self._size = 0

    def created(self, slots, size):
        """These slots, int64[U], got a row, which counts as trained now; the table has `size` slots."""
        self._last.reserve(size)
        self._frequency.reserve(size)
        self._size = max(self._size, size)
        self._last.array[slots] = self.step
        self._frequency.array[slots] = 0

    def trained(self, slots):
        """These slots, int64[U], distinct, are trained now; those without a row are skipped."""
        own = slots[(slots >= 0) & (slots < self._size)]
        self._last.array[own] = self.step
        self._frequency.array[own] += 1

    def get(self, slots):
        """-> (last_used uint32[U], frequency uint32[U])."""
        return self._last.array[slots], self._frequency.array[slots]

    def set(self, slots, last_used, frequency):
        """Sets what `get` gives; the slot -1 is skipped."""
        own = slots >= 0
        self._last.array[slots[own]] = last_used[own]
        self._frequency.array[slots[own]] = frequency[own]

    def expired(self, keys, ttl_steps):
        """int64[n] keys in slot order, 0 for a free slot -> int64[E], the slots last used more than `ttl_steps` ago."""
        last = self._last.array[: len(keys)].astype(np.int64)
        return np.flatnonzero((keys != 0) & (last + ttl_steps < self.step))

    def lowest(self, keys, count, eviction, protected):
        """The rows to go first; rows of equal use go in the order of a hash of their keys, whatever their slots.

        Args:
          keys: int64[n], in slot order, 0 for a free slot.
          count: how many.
          eviction: `lru` or `lfu`.
          protected: int64[P], slots that must stay.

        Returns:
          int64[<= count] slots.
        """
        scores = np.empty(len(keys), np.uint64)
        of = self._last if eviction == "lru" else self._frequency
        _score(keys, of.array[: len(keys)], scores)
        scores[protected[protected >= 0]] = _MOST
        count = min(count, np.count_nonzero(scores != _MOST))
        return np.argpartition(scores, count - 1)[:count] if count else np.empty(0, np.int64)


@numba.njit(types.void(KEYS, _UINT32, _SCORES), nogil=True, cache=True)
def _score(keys, use, scores):
    for slot in range(keys.size):
        if keys[slot] == 0:
            scores[slot] = _MOST
        else:
            # The hash's low bits: the high ones are a key's place in the index, which would get gaps and clusters.
            tie = mix(np.uint64(keys[slot])) & np.uint64(0x7FFFFFFF)
            scores[slot] = (np.uint64(use[slot]) << np.uint64(32)) | tie
