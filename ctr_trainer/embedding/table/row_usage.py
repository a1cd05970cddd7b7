"""How often and how lately each row was trained, and which rows go first."""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.cpu_prefetch import AHEAD, prefetch
from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_hash import KEYS, mix
from ctr_trainer.embedding.memory.growable_array import GrowableArray
from ctr_trainer.embedding.table.bits import Bits

_UINT32 = types.Array(types.uint32, 1, "C", readonly=True)
_SCORES = types.Array(types.uint64, 1, "C")
_SLOTS_OUT = types.Array(types.int64, 1, "C")
# So many times as many rows as are to go are looked at, and at least so many: a small table's all.
_SAMPLED, _LEAST_SAMPLE = 8, 1 << 13
# Slots that are looked at for expired rows at a time, and how many expired ones are found at a time.
_SCANNED, _EXPIRED = 1 << 22, 1 << 15


class RowUsage:
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

    def expired(self, keys, start, ttl_steps):
        """Finds slots that were last used more than `ttl_steps` ago, in a few milliseconds.

        Args:
          keys: int64[n] in slot order, 0 for a free slot.
          start: the slot to begin at. At most `_SCANNED` slots are looked at, and at most `_EXPIRED` found.
          ttl_steps: int.

        Returns:
          (int64[E] slots, the slot to begin at next)
        """
        before = self.step - ttl_steps
        if before <= 0:
            return np.empty(0, np.int64), len(keys)
        slots = np.empty(_EXPIRED, np.int64)
        count, stop = _expired(keys, self._last.array, before, start, min(start + _SCANNED, len(keys)), slots)
        return slots[:count], stop

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


_INT = types.int64


@numba.njit(types.UniTuple(_INT, 2)(KEYS, _UINT32, _INT, _INT, _INT, _SLOTS_OUT), nogil=True, cache=True)
def _expired(keys, last, before, start, stop, slots):
    """Fills `slots` with those of [start, stop) last used before `before`. -> (how many, the slot to go on from)"""
    count = 0
    for slot in range(start, stop):
        if last[slot] < before and keys[slot] != 0:
            if count == slots.size:
                return count, slot
            slots[count] = slot
            count += 1
    return count, stop
