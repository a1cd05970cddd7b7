"""Tracks the changes of a table since its last snapshot."""

import numpy as np

from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.table.row_space import Bits
from ctr_trainer.embedding.table.row_watcher import RowWatcher, WatchedTable

# The size of a block, which is copied while the table's lock is held. It is small, because a thread may lose its core
# while it holds the lock.
_BLOCK_BYTES, _BLOCK_ROWS = 1 << 20, 1 << 16


Block = tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray] | None]  # Keys, rows, and (last_used, frequency).


class RemovedKeys:
    """A list of removed keys that a snapshot takes without a copy.

    There are two arrays: one grows while a snapshot reads the other.
    """

    def __init__(self, memory: TableMemory) -> None:
        self._arrays, self._memory = [memory.array(f"removed{turn}", np.int64) for turn in range(2)], memory
        self._numbers = memory.counts("removed", 3)  # The length of each array; which array grows.

    def add(self, keys: np.ndarray) -> None:
        """Appends keys, int64[n]."""
        turn = self._numbers[2]
        count = self._numbers[turn]
        array = self._arrays[turn]
        array.reserve(count + len(keys))
        array.array[count : count + len(keys)] = keys
        self._numbers[turn] += len(keys)

    def take(self) -> np.ndarray:
        """Returns int64[n], the keys removed since the last `take`, in order; valid until the next `take`."""
        turn = self._numbers[2]
        other = 1 - turn
        self._arrays[other].release(0, self._numbers[other], self._memory.free)
        self._numbers[[other, 2]] = 0, other
        return self._arrays[turn].array[: self._numbers[turn]]

    def clear(self) -> None:
        """Forgets all keys."""
        self._numbers[self._numbers[2]] = 0


class Changes(RowWatcher):
    """Tracks, in three bits per row, which rows the next snapshot must contain and which keys it must remove.

    A key that was added and removed between two snapshots is in neither of them. So at most as many removals are kept
    as the last snapshot has rows. The table announces each change before it makes it. If a snapshot is being taken, it
    then copies the unchanged row, so that the whole snapshot shows the table at the moment when the snapshot began.

    Caveat: use it only under the table's lock.
    """

    def __init__(self, memory: TableMemory) -> None:
        """The bits and removed keys lie in `memory`; the state of a running snapshot is local to its process."""
        self._present, self._changed, self._saved = self._sets = [
            Bits(memory.array(name, np.uint8)) for name in ("present", "changed", "saved")
        ]
        self._removed = RemovedKeys(memory)
        self._capture: Capture | None = None

    def before_change(self, table: WatchedTable, slots: np.ndarray) -> None:
        if self._capture is not None:
            self._capture.keep(table, slots)
        self._changed.reserve(len(table.keys))  # Another process may have created some of these rows.
        self._changed.add(slots)

    def created(self, slots: np.ndarray, size: int) -> None:
        for each in self._sets:
            each.reserve(size)
        self._present.add(slots)
        self._changed.add(slots)

    def before_removal(self, table: WatchedTable, slots: np.ndarray) -> None:
        if self._capture is not None:
            self._capture.keep(table, slots)
        self._reserve(table)
        self._removed.add(table.keys[slots[self._saved.among(slots)]])
        for each in self._sets:
            each.remove(slots)

    def before_clear(self, table: WatchedTable) -> None:
        # The next snapshot must be a full one.
        self._reserve(table)
        for each in self._sets:
            each.clear()
        self._removed.clear()
        self._capture = None

    def restored(self, table: WatchedTable) -> None:
        """Records that the table is now equal to its last snapshot."""
        self._reserve(table)
        self._removed.clear()
        self._changed.clear()
        self._reserve(table)
        self._saved.become(self._present)

    def begin(self, table: WatchedTable, full: bool) -> "Capture":
        """Begins a snapshot of the current table: all rows if `full`, else the changed rows."""
        self._reserve(table)
        pending = self._present.copy() if full else self._changed.copy()
        self._saved.become(self._present)
        removed = self._removed.take()
        self._changed.clear()
        self._reserve(table)
        self._capture = capture = Capture(table, pending, removed[:0] if full else removed)
        return capture

    def _reserve(self, table: WatchedTable) -> None:
        """Makes room for all slots of the table, because another process may have created some of them."""
        for each in self._sets:
            each.reserve(len(table.keys))

    def end(self) -> None:
        self._capture = None


class Capture:
    """The rows of a table at the moment when a snapshot began, read in blocks while the table changes.

    Attributes:
      config: the TableConfig.
      counts: the result of `Admission.counts`; None if the table has no counting filter.
    """

    def __init__(self, table: WatchedTable, pending: Bits, removed: np.ndarray) -> None:
        """Captures the slots `pending`; `removed`, int64[n], is valid until the next snapshot begins."""
        self.config = table.config
        self.counts = table.admission_counts()
        self._pending = pending
        self._removed = removed
        self._kept: list[Block] = []
        self._cursor = 0

    def removed(self) -> np.ndarray:
        """Returns int64[n], ascending: the keys removed since the last snapshot, including keys that were added again.

        Caveat: the time grows with the number of these keys, so call it without the table's lock.
        """
        return np.unique(self._removed)

    def keep(self, table: WatchedTable, slots: np.ndarray) -> None:
        """Copies those rows at `slots` that were not read yet. Call it under the table's lock."""
        slots = slots[self._pending.among(slots)]
        if len(slots):
            self._kept.append(_copy(table, slots))
            self._pending.remove(slots)

    def read(self, table: WatchedTable) -> Block | None:
        """Copies the next block; returns None at the end. Call it under the table's lock.

        A block is (keys int64[n], rows float32[n, width], use). `use` is (last_used uint32[n], frequency uint32[n]), or
        None for a table that evicts no rows.
        """
        if self._kept:
            return self._kept.pop()
        most = max(min(_BLOCK_BYTES // (self.config.width * 4 + 8), _BLOCK_ROWS), 1)
        slots, self._cursor = self._pending.pop(self._cursor, most, remove=True)
        return _copy(table, slots) if len(slots) else None


def _copy(table: WatchedTable, slots: np.ndarray) -> Block:
    return table.keys[slots], table.take(slots), table.use_of(slots)
