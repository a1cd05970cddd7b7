"""How often and how lately each row was trained, and which rows are evicted first."""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import AHEAD, KEYS, kernel, mix, prefetch
from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.table.row_space import Bits

_UINT32 = types.Array(types.uint32, 1, "C", readonly=True)
_SCORES = types.Array(types.uint64, 1, "C")
_SLOTS_OUT = types.Array(types.int64, 1, "C")
# To evict n rows, a sample of 8 n rows is compared, and at least 8,192 rows: of a smaller table all rows.
_SAMPLED, _LEAST_SAMPLE = 8, 1 << 13
# The most slots that are searched for expired rows in one call, and the most expired rows that one call finds.
_SCANNED, _EXPIRED = 1 << 22, 1 << 15


class RowUsage:
    """For each slot, in 8 bytes, the step at which its row was last trained, and how often it was trained."""

    def __init__(self, memory: TableMemory) -> None:
        self._last, self._frequency = memory.array("last_used", np.uint32), memory.array("frequency", np.uint32)
        self._numbers = memory.counts("usage", 1)
        self._protected = Bits()  # Empty, except within `lowest`.

    @property
    def step(self) -> int:
        """The clock: the global step of the last `Store.advance`."""
        return int(self._numbers[0])

    @step.setter
    def step(self, step: int) -> None:
        self._numbers[0] = step

    def created(self, slots: np.ndarray, size: int) -> None:
        """Told by the table: the slots, int64[U], got new rows, which count as trained now; it has `size` slots now."""
        self._last.reserve(size)
        self._frequency.reserve(size)
        self._last.array[slots] = self.step
        self._frequency.array[slots] = 0

    def trained(self, slots: np.ndarray, size: int) -> None:
        """Notes that the rows at `slots`, int64[U], distinct, are trained now; slots outside [0, size) are skipped."""
        own = slots[(slots >= 0) & (slots < size)]
        self._last.array[own] = self.step
        self._frequency.array[own] += 1

    def get(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (last_used uint32[U], frequency uint32[U])."""
        return self._last.array[slots], self._frequency.array[slots]

    def set(self, slots: np.ndarray, last_used: np.ndarray, frequency: np.ndarray) -> None:
        """Sets what `get` returns for `slots`; the slot -1 is skipped."""
        own = slots >= 0
        self._last.array[slots[own]] = last_used[own]
        self._frequency.array[slots[own]] = frequency[own]

    def expired(self, keys: np.ndarray, start: int, ttl_steps: int) -> tuple[np.ndarray, int]:
        """Finds rows that were last trained more than `ttl_steps` global steps ago, in a few milliseconds.

        At most `_SCANNED` of the `keys`, int64[n] in slot order with 0 for a free slot, are searched, from `start` on,
        and at most `_EXPIRED` rows are found. Returns (int64[E] slots, the slot to begin at next).
        """
        before = self.step - ttl_steps
        if before <= 0:
            return np.empty(0, np.int64), len(keys)
        slots = np.empty(_EXPIRED, np.int64)
        count, stop = _expired(keys, self._last.array, before, start, min(start + _SCANNED, len(keys)), slots)
        return slots[:count], stop

    def lowest(self, index: Index, count: int, eviction: str, protected: np.ndarray, origin: int) -> np.ndarray:
        """Chooses `count` rows to evict by `lru` or `lfu`, from a random sample of `_SAMPLED` times their number.

        Comparing all rows would take time in proportion to the size of the table. An evicted row is in the lowest
        eighth of its sample, and so about in the lowest eighth of all rows. (Redis evicts by samples of 5.) Both the
        sample and the choice among equal rows depend on the keys and `origin`, not on slots: a table that was restored
        from a snapshot evicts the same rows as the table that was saved.

        Returns int64[<= count], their slots; fewer than `count` only if all other rows are `protected`, int64[P] slots,
        of which -1 is skipped.
        """
        of = self._last if eviction == "lru" else self._frequency
        self._protected.reserve(index.slots)
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


@kernel(types.void(KEYS, _UINT32, SLOTS, _SCORES))
def _score(keys: np.ndarray, use: np.ndarray, slots: np.ndarray, scores: np.ndarray) -> None:
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(use, slots[i + AHEAD])
            prefetch(keys, slots[i + AHEAD])
        # Ties are broken by the low bits of the hash, as the sample was drawn by the high bits.
        tie = mix(np.uint64(keys[slots[i]])) & np.uint64(0xFFFFFFFF)
        scores[i] = (np.uint64(use[slots[i]]) << np.uint64(32)) | tie


_INT = types.int64


@kernel(types.UniTuple(_INT, 2)(KEYS, _UINT32, _INT, _INT, _INT, _SLOTS_OUT))
def _expired(
    keys: np.ndarray, last: np.ndarray, before: int, start: int, stop: int, slots: np.ndarray
) -> tuple[int, int]:
    """Fills `slots` with the slots of [start, stop) whose row was last trained before `before`.

    Returns (how many slots are filled, the slot to start from next).
    """
    count = 0
    for slot in range(start, stop):
        if last[slot] < before and keys[slot] != 0:
            if count == slots.size:
                return count, slot
            slots[count] = slot
            count += 1
    return count, stop
