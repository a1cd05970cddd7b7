"""The recency and frequency of each row's training, and the choice of rows to add and to evict."""

from typing import Any

import numpy as np
from numba import types

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import AHEAD, KEYS, kernel, mix, prefetch
from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.table.admission import Admission
from ctr_trainer.embedding.table.row_space import Bits, RowWatcher, WatchedTable
from ctr_trainer.embedding.table.table_config import TableConfig

_UINT32, _USE = types.Array(types.uint32, 1, "C", readonly=True), types.Array(types.uint32, 1, "C")
_SCORES = types.Array(types.uint64, 1, "C")
_SLOTS_OUT = types.Array(types.int64, 1, "C")
# To evict n rows, a sample of 8 n rows, but at least 8,192 rows, is compared: all rows of a smaller table.
_SAMPLED, _LEAST_SAMPLE = 8, 1 << 13
# The most slots that are searched for expired rows in one call, and the most expired rows that one call finds.
_SCANNED, _EXPIRED = 1 << 22, 1 << 15
_YOUNG = 100  # Steps. In `coldest`, rows that were trained within fewer steps differ mostly by their frequency.
_COMPARED = 1 << 15  # Rows from which `coldest` estimates how cold a row has to be.
# Counters since the start: rows created (without restored ones), restored from a snapshot, admitted by the counting
# filter and evicted, and how often a key got no row.
_COUNTED = ("created", "restored", "admitted", "evicted", "refused")
_NONE = np.empty(0, np.int64)


class RowUsage(RowWatcher):
    """Keeps for each slot, in 8 bytes, the step at which its row was last trained and how often it was trained."""

    def __init__(self, memory: TableMemory, ticks: bool = False) -> None:
        """With `ticks`, each training of rows moves the clock, else `Store.advance` does."""
        self._ticks = ticks
        self._last, self._frequency = memory.array("last_used", np.uint32), memory.array("frequency", np.uint32)
        self._numbers = memory.counts("usage", 1)
        self._protected = Bits()  # Empty, except inside `lowest` and `coldest`.
        self._hand = 0  # The slot from which `coldest` continues.

    @property
    def step(self) -> int:
        """The clock: the global step of the last `Store.advance`, or the number of trainings of rows."""
        return int(self._numbers[0])

    @step.setter
    def step(self, step: int) -> None:
        self._numbers[0] = step

    def created(self, slots: np.ndarray, size: int) -> None:
        """Records new rows, which count as trained now."""
        self._last.reserve(size)
        self._frequency.reserve(size)
        self._last.array[slots] = self.step
        self._frequency.array[slots] = 0

    def before_change(self, table: WatchedTable, slots: np.ndarray) -> None:
        self._numbers[0] += self._ticks
        own = slots[slots >= 0]
        self._last.array[own] = self.step
        self._frequency.array[own] += 1

    def get(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._last.array[slots], self._frequency.array[slots]

    def set(self, slots: np.ndarray, last_used: np.ndarray, frequency: np.ndarray) -> None:
        """Sets the values that `get` returns for `slots`; the slot -1 is skipped."""
        own = slots >= 0
        self._last.array[slots[own]] = last_used[own]
        self._frequency.array[slots[own]] = frequency[own]

    def expired(self, keys: np.ndarray, start: int, ttl_steps: int) -> tuple[np.ndarray, int]:
        """Finds rows that were last trained more than `ttl_steps` global steps ago, in a few milliseconds.

        Searches at most `_SCANNED` of `keys`, int64[n] in slot order with 0 for a free slot, from `start` on, and finds
        at most `_EXPIRED` rows. Returns (int64[E] slots, the slot from which the next call continues).
        """
        before = self.step - ttl_steps
        if before <= 0:
            return np.empty(0, np.int64), len(keys)
        slots = np.empty(_EXPIRED, np.int64)
        count, stop = _expired(
            keys, self._last.array, self.step, before, start, min(start + _SCANNED, len(keys)), slots
        )
        return slots[:count], stop

    def lowest(self, index: Index, count: int, eviction: str, protected: np.ndarray, origin: int) -> np.ndarray:
        """Chooses `count` rows to evict by `eviction`, `lru` or `lfu`, from a sample of `_SAMPLED` times as many rows.

        The time to compare all rows would grow with the size of the table. An evicted row is in the lowest eighth of
        its sample, and so in about the lowest eighth of all rows. (Redis evicts from samples of 5.) The sample and the
        choice among equal rows depend on the keys and `origin`, not on slots, so a table that was restored from a
        snapshot evicts the same rows as the saved table.

        Returns int64[<= count] slots, fewer than `count` only if all other rows are in `protected`, int64[P] slots, in
        which -1 is skipped.
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

    def coldest(self, keys: np.ndarray, count: int, protected: np.ndarray) -> np.ndarray:
        """Returns the slots, int64[<= count], of about the rows with the fewest trainings per step since the last one.

        `keys` are int64[n] in slot order, with 0 for a free slot. A sample tells how cold about `count` rows are; then
        the slots are searched for such rows, as by the hand of a clock. There are fewer than `count` only if all other
        rows are in `protected`, int64[P] slots, in which -1 is skipped.
        """
        self._protected.reserve(len(keys))
        self._protected.add(protected)
        stride = max(len(keys) // _COMPARED, 1)
        sample = np.arange(self._hand % stride, len(keys), stride)
        sample = sample[(keys[sample] != 0) & ~self._protected.among(sample)]
        last, frequency = self.get(sample)
        rates = np.sort((frequency + 1.0) / (self.step - last.astype(np.int64) + _YOUNG))
        at = 9 * count // (8 * stride)  # An eighth more than `count`: then one search mostly suffices.
        slots = np.empty(min(count + len(protected), len(keys)), np.int64)
        while True:
            bound = float(rates[at]) if at < len(rates) else np.inf
            found, hand = _colder(keys, self._last.array, self._frequency.array, self.step, bound, self._hand, slots)
            chosen = slots[:found]
            chosen = chosen[~self._protected.among(chosen)][:count]
            if len(chosen) == count or bound == np.inf:
                break
            at += max(at, 1)
        self._protected.remove(protected)
        self._hand = hand
        return chosen


@kernel(types.void(KEYS, _UINT32, SLOTS, _SCORES))
def _score(keys: np.ndarray, use: np.ndarray, slots: np.ndarray, scores: np.ndarray) -> None:
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(use, slots[i + AHEAD])
            prefetch(keys, slots[i + AHEAD])
        # The low bits of the hash break ties, because the high bits selected the sample.
        tie = mix(np.uint64(keys[slots[i]])) & np.uint64(0xFFFFFFFF)
        scores[i] = (np.uint64(use[slots[i]]) << np.uint64(32)) | tie


_INT = types.int64


@kernel(types.UniTuple(_INT, 2)(KEYS, _UINT32, _UINT32, _INT, types.float64, _INT, _SLOTS_OUT))
def _colder(
    keys: np.ndarray, last: np.ndarray, frequency: np.ndarray, now: int, bound: float, start: int, slots: np.ndarray
) -> tuple[int, int]:
    """Returns (how many `slots` it has set to rows with at most the rate `bound`, where the next call continues)."""
    count, slot = 0, start if start < keys.size else 0
    for _ in range(keys.size):
        if count == slots.size:
            break
        rate = (np.float64(frequency[slot]) + 1.0) / np.float64(now - np.int64(last[slot]) + _YOUNG)
        if rate <= bound and keys[slot] != 0:
            slots[count] = slot
            count += 1
        slot = slot + 1 if slot + 1 < keys.size else 0
    return count, slot


@kernel(types.UniTuple(_INT, 2)(KEYS, _USE, _INT, _INT, _INT, _INT, _SLOTS_OUT))
def _expired(
    keys: np.ndarray, last: np.ndarray, now: int, before: int, start: int, stop: int, slots: np.ndarray
) -> tuple[int, int]:
    """Returns (how many `slots` it has set to rows last trained before `before`, where the next call continues)."""
    count = 0
    for slot in range(start, stop):
        if last[slot] == 0:  # It is not known when the row was trained.
            last[slot] = now
        elif last[slot] < before and keys[slot] != 0:
            if count == slots.size:
                return count, slot
            slots[count] = slot
            count += 1
    return count, stop


def row_counters(memory: TableMemory) -> Any:
    """Returns a record of the numbers `created`, `restored`, ..., over all processes that share the table."""
    return memory.counts("row_counters", len(_COUNTED)).view([(name, np.int64) for name in _COUNTED], np.recarray)[0]


class RowLimits:
    """Chooses the rows that a table adds and evicts, by `min_frequency`, `max_rows` and `ttl_steps` of its TableConfig.

    `most_rows` is a shard's share of `config.max_rows` and replaces it; None means `config.max_rows` itself.

    Attributes:
      admission: `Admission`; None if every key is admitted.
      usage: `RowUsage`; None if no rows are evicted, unless `uses`.
      may_refuse: whether a key may get no row.
    """

    def __init__(self, config: TableConfig, most_rows: int | None, memory: TableMemory, uses: bool = False) -> None:
        self._config = config
        self._most_rows = config.max_rows if most_rows is None else most_rows
        self.admission = Admission(config.min_frequency, memory) if config.min_frequency > 1 else None
        self.usage = RowUsage(memory, ticks=not config.evicts) if config.evicts or uses else None
        self.may_refuse = bool(self.admission or self._most_rows)

    def admit(self, keys: np.ndarray, counters: Any) -> np.ndarray:
        """Counts `keys`, int64[U], which have no rows, and returns the keys that have come often enough to get one."""
        if self.admission is None:
            return keys
        admitted = keys[self.admission.admit(keys)]
        counters.admitted += len(admitted)
        return admitted

    def surplus(self, index: Index, wanted: np.ndarray = _NONE, protected: np.ndarray = _NONE) -> np.ndarray:
        """Returns int64[n], the slots to evict to make room for as many of `wanted`, int64[U] keys, as possible.

        The slots `protected`, int64[P], are not evicted; -1 is skipped.
        """
        excess = len(index) + len(wanted) - self._most_rows
        if not self._most_rows or excess <= 0:
            return _NONE
        origin = int(wanted[0]) if len(wanted) else 0
        assert self.usage is not None  # `max_rows` evicts rows.
        return self.usage.lowest(index, excess, self._config.eviction, protected, origin)

    def room(self, index: Index, count: int) -> int:
        """Returns how many of `count` new keys fit."""
        return min(count, max(self._most_rows - len(index), 0)) if self._most_rows else count

    def expired(self, keys: np.ndarray, start: int) -> tuple[np.ndarray, int]:
        """Returns (slots not trained for more than `ttl_steps` steps, the slot from which the next call continues)."""
        if not self._config.ttl_steps or self.usage is None:
            return _NONE, len(keys)
        return self.usage.expired(keys, start, self._config.ttl_steps)

    def have_expired(self, last_used: np.ndarray) -> np.ndarray:
        """Returns bool[n] for the steps, uint32[n], at which rows were last trained, with 0 for unknown ones."""
        assert self.usage is not None
        before = max(self.usage.step - self._config.ttl_steps, 0) if self._config.ttl_steps else 0
        return (last_used > 0) & (last_used < before)

    def clear(self) -> None:
        if self.admission is not None:
            self.admission.clear()
