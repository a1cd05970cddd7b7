"""Which keys of a table get rows, and which rows have to go."""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.index.key_kernels import KEYS, kernel, mix
from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.table.row_usage import RowUsage
from ctr_trainer.embedding.table.table_config import TableConfig

_LINES = 2
_WIDTH = 1 << 22
_COUNTED = ("created", "restored", "admitted", "evicted", "refused")
_NONE = np.empty(0, np.int64)


class Admission:
    """Counts the keys that have no row, in `2 * width` bytes for any number of keys.

    The counts are a count-min sketch with conservative update and `width` counters per line. A key's count is never
    below the number of times that it came, so no key waits too long. It is rarely above: only if other keys share both
    of its counters. To keep that rare, all counters are halved after each `width` counts.

    The counters go into snapshots. If a table gets another number of shards, the counters of several shards are merged:
    each becomes the largest of them, so that no key's count is too low.

    Source: Estan and Varghese, New Directions in Traffic Measurement and Accounting, SIGCOMM 2002.
    """

    def __init__(self, min_frequency: int, memory: TableMemory | None = None, width: int = _WIDTH) -> None:
        """Lets a key in when it comes for the `min_frequency`-th time; `width` counters per line, a power of two."""
        self._min_frequency, memory = min_frequency, memory or TableMemory()
        counters = memory.array("admission", np.uint8, (width,), most_rows=_LINES)
        counters.reserve(_LINES)
        self._counters = counters.array[:_LINES]
        self._numbers = memory.counts("admission", 1)  # The counts since the counters were last halved.

    def admit(self, keys: np.ndarray) -> np.ndarray:
        """Counts distinct keys without rows, int64[U]; returns bool[U], whether each has come `min_frequency` times."""
        admitted = np.ones(len(keys), np.bool_)
        if self._min_frequency > 1:
            _count(self._counters, keys, self._min_frequency, admitted)
            self._numbers[0] += len(keys)
            if self._numbers[0] >= self._counters.shape[1]:
                self._counters >>= 1
                self._numbers[0] = 0
        return admitted

    def counts(self) -> tuple[np.ndarray, int]:
        """Returns (uint8[2, width], a copy of the counters; int, the counts since the counters were last halved)."""
        return self._counters.copy(), int(self._numbers[0])

    def merge_counts(self, counters: np.ndarray, counted: int) -> None:
        """Merges what `counts` returned, here or at another shard, into the counters."""
        np.maximum(self._counters, counters, out=self._counters)
        self._numbers[0] = max(self._numbers[0], counted)

    def clear(self) -> None:
        self._counters.fill(0)
        self._numbers[0] = 0


_COUNTERS = types.Array(types.uint8, 2, "C")
_ADMITTED = types.Array(types.boolean, 1, "C")


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


def _counter(name: str) -> property:
    place = _COUNTED.index(name)

    def read(self: "RowCounters") -> int:
        return int(self._numbers[place])

    def write(self: "RowCounters", value: int) -> None:
        self._numbers[place] = value

    return property(read, write)


class RowCounters:
    """Counts since the start, of all processes that share the table.

    Attributes:
      created: rows created, without the rows of a snapshot.
      restored: rows taken from a snapshot.
      admitted: keys that the counting filter let in.
      evicted: rows evicted.
      refused: how often a key was asked for and got no row.
    """

    created, restored, admitted, evicted, refused = map(_counter, _COUNTED)

    def __init__(self, memory: TableMemory) -> None:
        self._numbers = memory.counts("row_counters", len(_COUNTED))

    def to_dict(self) -> dict[str, int]:
        return dict(zip(_COUNTED, self._numbers.tolist(), strict=True))


class RowLimits:
    """Decides by `min_frequency`, `max_rows` and `ttl_steps` of a TableConfig; the table carries it out.

    `most_rows` is a shard's share of `config.max_rows`, the limit in its place; None for `config.max_rows` itself.

    Attributes:
      admission: `Admission`; None if every key is let in.
      usage: `RowUsage`; None if no row is ever evicted.
      may_refuse: whether a key may get no row.
    """

    def __init__(self, config: TableConfig, most_rows: int | None, memory: TableMemory) -> None:
        self._config = config
        self._most_rows = config.max_rows if most_rows is None else most_rows
        self.admission = Admission(config.min_frequency, memory) if config.min_frequency > 1 else None
        self.usage = RowUsage(memory) if config.evicts else None
        self.may_refuse = bool(self.admission or self._most_rows)

    def admit(self, keys: np.ndarray, counters: RowCounters) -> np.ndarray:
        """Returns those of `keys`, int64[U], without rows, that have come often enough to get one; counts them."""
        if self.admission is None:
            return keys
        admitted = keys[self.admission.admit(keys)]
        counters.admitted += len(admitted)
        return admitted

    def surplus(self, index: Index, wanted: np.ndarray = _NONE, protected: np.ndarray = _NONE) -> np.ndarray:
        """Returns int64[n], the slots of the rows to evict, so that `wanted`, int64[U] keys, fit in as far as possible.

        The slots `protected`, int64[P], stay; -1 is skipped.
        """
        excess = len(index) + len(wanted) - self._most_rows
        if not self._most_rows or excess <= 0:
            return _NONE
        origin = int(wanted[0]) if len(wanted) else 0
        assert self.usage is not None  # `max_rows` evicts rows.
        return self.usage.lowest(index, excess, self._config.eviction, protected, origin)

    def room(self, index: Index, count: int) -> int:
        """Returns how many of `count` new keys there is room for."""
        return min(count, max(self._most_rows - len(index), 0)) if self._most_rows else count

    def expired(self, keys: np.ndarray, start: int) -> tuple[np.ndarray, int]:
        """Returns (slots not trained for over `ttl_steps` steps, the next slot to start from)."""
        if not self._config.ttl_steps or self.usage is None:
            return _NONE, len(keys)
        return self.usage.expired(keys, start, self._config.ttl_steps)

    def clear(self) -> None:
        """Forgets how often keys came."""
        if self.admission is not None:
            self.admission.clear()
