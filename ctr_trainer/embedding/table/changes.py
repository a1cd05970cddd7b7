"""What changed in a table since its last snapshot."""

from typing import Protocol

import numpy as np

from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.table.row_limits import RowLimits
from ctr_trainer.embedding.table.row_space import Bits
from ctr_trainer.embedding.table.table_config import TableConfig

# Of a block, which is copied in one hold of the table's lock: a thread that has to wait for a core may hold it.
_BLOCK_BYTES, _BLOCK_ROWS = 1 << 20, 1 << 16


Block = tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray] | None]  # Keys, rows and their use.


class TrackedTable(Protocol):
    """What the bookkeeping of changes reads of a `Table`."""

    config: TableConfig
    limits: RowLimits

    @property
    def keys(self) -> np.ndarray: ...

    def take(self, slots: np.ndarray, columns: int | None = None) -> np.ndarray: ...

    def use_of(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None: ...

    def find_and_count(self, keys: np.ndarray) -> tuple[np.ndarray, int]: ...


class RemovedKeys:
    """A list of keys that grows with each removal, and that a snapshot takes away without a copy.

    Two arrays take turns: one grows while a snapshot reads the other.
    """

    def __init__(self, memory: TableMemory) -> None:
        self._arrays, self._memory = [memory.array(f"removed{turn}", np.int64) for turn in range(2)], memory
        self._numbers = memory.counts("removed", 3)  # How many keys each array has; which of the two grows.

    def add(self, keys: np.ndarray) -> None:
        """Appends keys, int64[n]."""
        turn = self._numbers[2]
        count = self._numbers[turn]
        array = self._arrays[turn]
        array.reserve(count + len(keys))
        array.array[count : count + len(keys)] = keys
        self._numbers[turn] += len(keys)

    def take(self) -> np.ndarray:
        """Returns the keys since the last `take`, int64[n], in the order of removal; valid until the next `take`."""
        turn = self._numbers[2]
        other = 1 - turn
        self._arrays[other].release(0, self._numbers[other], self._memory.free)
        self._numbers[[other, 2]] = 0, other
        return self._arrays[turn].array[: self._numbers[turn]]

    def clear(self) -> None:
        """Forgets all keys."""
        self._numbers[self._numbers[2]] = 0


class Changes:
    """Keeps, in three bits per row, which rows the next snapshot has to hold and which keys it has to take out.

    A key that came and went between two snapshots is in neither of them. So the number of removals that are kept is at
    most the number of rows in the last snapshot. The table announces each change before it makes it. A snapshot that is
    under way then copies the row as it was, so that the whole snapshot is of the moment at which it began.

    Caveat: use it under the table's lock only.
    """

    def __init__(self, memory: TableMemory) -> None:
        """The captured rows lie in `memory`; the state of a running snapshot is local to its process."""
        self._present, self._changed, self._saved = self._sets = [
            Bits(memory.array(name, np.uint8)) for name in ("present", "changed", "saved")
        ]
        self._removed = RemovedKeys(memory)
        self._capture: Capture | None = None

    def before_change(self, table: TrackedTable, slots: np.ndarray) -> None:
        """Notes that the rows at `slots`, int64[U], are about to change."""
        if self._capture is not None:
            self._capture.keep(table, slots)
        self._changed.reserve(len(table.keys))  # Another process may have made some of these rows.
        self._changed.add(slots)

    def created(self, slots: np.ndarray, size: int) -> None:
        """Notes that the slots, int64[U], got new rows; the table has `size` slots now."""
        for each in self._sets:
            each.reserve(size)
        self._present.add(slots)
        self._changed.add(slots)

    def before_removal(self, table: TrackedTable, slots: np.ndarray) -> None:
        """Notes that the rows at `slots`, int64[U], and their keys are about to be removed."""
        if self._capture is not None:
            self._capture.keep(table, slots)
        self._reserve(table)
        self._removed.add(table.keys[slots[self._saved.among(slots)]])
        for each in self._sets:
            each.remove(slots)

    def before_clear(self, table: TrackedTable) -> None:
        """Notes that all rows are about to be removed. No delta can follow the last snapshot."""
        self._reserve(table)
        for each in self._sets:
            each.clear()
        self._removed.clear()
        self._capture = None

    def restored(self, table: TrackedTable) -> None:
        """Notes that the table now is what its last snapshot holds."""
        self._reserve(table)
        self._removed.clear()
        self._changed.clear()
        self._reserve(table)
        self._saved.become(self._present)

    def begin(self, table: TrackedTable, full: bool) -> "Capture":
        """Begins a snapshot of the table as it is now: of all rows if `full`, else of what has changed."""
        self._reserve(table)
        pending = self._present.copy() if full else self._changed.copy()
        self._saved.become(self._present)
        removed = self._removed.take()
        self._changed.clear()
        self._reserve(table)
        self._capture = capture = Capture(table, pending, removed[:0] if full else removed)
        return capture

    def _reserve(self, table: TrackedTable) -> None:
        """Makes room for all slots of the table: another process may have made some of them."""
        for each in self._sets:
            each.reserve(len(table.keys))

    def end(self) -> None:
        self._capture = None


class Capture:
    """The rows of a table at the moment a snapshot of it began, read block by block while the table changes.

    Attributes:
      config: the TableConfig.
      counts: what `Admission.counts` returned; None if the table has no counting filter.
    """

    def __init__(self, table: TrackedTable, pending: Bits, removed: np.ndarray) -> None:
        """Reads the slots `pending`; `removed`, int64[n], is valid until the next snapshot begins."""
        self.config = table.config
        self.counts = table.limits.admission.counts() if table.limits.admission else None
        self._pending = pending
        self._removed = removed
        self._kept: list[Block] = []
        self._cursor = 0

    def removed(self) -> np.ndarray:
        """Returns int64[n], ascending: the keys removed since the last snapshot, including those that came back.

        Caveat: it takes time in proportion to the number of these keys, so call it without the table's lock.
        """
        return np.unique(self._removed)

    def keep(self, table: TrackedTable, slots: np.ndarray) -> None:
        """Copies the rows at `slots` that are still to be read. Call it under the table's lock."""
        slots = slots[self._pending.among(slots)]
        if len(slots):
            self._kept.append(_copy(table, slots))
            self._pending.remove(slots)

    def read(self, table: TrackedTable) -> Block | None:
        """Copies the next block, None at the end. Call it under the table's lock.

        It is (keys int64[n], rows float32[n, width], use), where `use` is (last_used uint32[n], frequency uint32[n]),
        or None for a table that evicts no rows.
        """
        if self._kept:
            return self._kept.pop()
        most = max(min(_BLOCK_BYTES // (self.config.width * 4 + 8), _BLOCK_ROWS), 1)
        slots, self._cursor = self._pending.pop(self._cursor, most, remove=True)
        return _copy(table, slots) if len(slots) else None


def _copy(table: TrackedTable, slots: np.ndarray) -> Block:
    return table.keys[slots], table.take(slots), table.use_of(slots)
