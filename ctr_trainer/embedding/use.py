"""How often and how lately each row was trained, and which rows go first."""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.bits import Bits
from ctr_trainer.embedding.index_kernels import SLOTS
from ctr_trainer.embedding.key_hash import KEYS, mix
from ctr_trainer.embedding.memory import GrowableArray
from ctr_trainer.embedding.prefetch import AHEAD, prefetch

_UINT32 = types.Array(types.uint32, 1, "C", readonly=True)
_SCORES = types.Array(types.uint64, 1, "C")
_SLOTS_OUT = types.Array(types.int64, 1, "C")
# So many times as many rows as are to go are looked at, and at least so many: a small table's all.
_SAMPLED, _LEAST_SAMPLE = 8, 1 << 13
_BLOCK = 1 << 20


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
        self._protected = Bits()  # Empty but within `lowest`.

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
        before, parts = self.step - ttl_steps, []
        for first in range(0, len(keys) if before > 0 else 0, _BLOCK):
            part, last = keys[first : first + _BLOCK], self._last.array[first : first + _BLOCK]
            slots = np.empty(len(part), np.int64)
            parts.append(slots[: _expired(part, last, before, slots)] + first)
        return np.concatenate([np.empty(0, np.int64), *parts])

    def lowest(self, index, count, eviction, protected, origin):
        """The rows to go first among a random sample of `_SAMPLED` times as many.

        To compare all rows would take as long as there are many. A row that goes is in the lowest eighth of its sample,
        so of all rows about; Redis evicts by samples too, of 5. What is drawn, and which go of equal rows, depends on
        the keys and `origin`, not on slots: a table restored from a snapshot evicts what the other would have.

        Args:
          index: the `Index` of the table.
          count: how many.
          eviction: `lru` or `lfu`.
          protected: int64[P], slots that must stay; -1 is skipped.
          origin: an int that draws the sample.

        Returns:
          int64[<= count] slots; fewer only where all others are protected.
        """
        of = self._last if eviction == "lru" else self._frequency
        self._protected.reserve(self._size)
        self._protected.add(protected)
        share = max(_SAMPLED * count, _LEAST_SAMPLE) / max(len(index), 1)
        while True:
            slots = index.sample(origin, share)
            slots = slots[~self._protected.among(slots)]
            if share >= 1 or len(slots) >= _SAMPLED // 2 * count:
                break
            share *= 2
        self._protected.remove(protected)
        count = min(count, len(slots))
        scores = np.empty(len(slots), np.uint64)
        _score(index.keys, of.array, slots, scores)
        return slots[np.argpartition(scores, count - 1)[:count]] if count else slots[:0]


@numba.njit(types.void(KEYS, _UINT32, SLOTS, _SCORES), nogil=True, cache=True)
def _score(keys, use, slots, scores):
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(use, slots[i + AHEAD])
            prefetch(keys, slots[i + AHEAD])
        # The hash's low bits: its high ones are what the sample was drawn by.
        tie = mix(np.uint64(keys[slots[i]])) & np.uint64(0xFFFFFFFF)
        scores[i] = (np.uint64(use[slots[i]]) << np.uint64(32)) | tie


@numba.njit(types.int64(KEYS, _UINT32, types.int64, _SLOTS_OUT), nogil=True, cache=True)
def _expired(keys, last, before, slots):
    count = 0
    for slot in range(keys.size):
        if last[slot] < before and keys[slot] != 0:
            slots[count] = slot
            count += 1
    return count
