"""What changed in a table since its last snapshot."""

import numpy as np

from ctr_trainer.embedding.table.bits import Bits

# Of a block, which is copied in one hold of the table's lock: a thread that has to wait for a core may hold it.
_BLOCK_BYTES, _BLOCK_ROWS = 1 << 20, 1 << 16


class RemovedKeys:
    """A list of keys that grows with each removal, and that a snapshot takes away without a copy.

    Two arrays take turns: one grows while a snapshot reads the other.

    Args:
      memory: where the keys lie, see `Table`.
    """

    def __init__(self, memory):
        self._arrays, self._memory = [memory.array(f"removed{turn}", np.int64) for turn in range(2)], memory
        self._numbers = memory.counts("removed", 3)  # How many keys each array has; which of the two grows.

    def add(self, keys):
        """Appends keys, int64[n]."""
        turn = self._numbers[2]
        count = self._numbers[turn]
        array = self._arrays[turn]
        array.reserve(count + len(keys))
        array.array[count : count + len(keys)] = keys
        self._numbers[turn] += len(keys)

    def take(self):
        """-> int64[n], the keys since the last `take`, in the order of their removal; valid until the next `take`."""
        turn = self._numbers[2]
        other = 1 - turn
        self._arrays[other].release(0, self._numbers[other], self._memory.free)
        self._numbers[[other, 2]] = 0, other
        return self._arrays[turn].array[: self._numbers[turn]]

    def clear(self):
        """Forgets all keys."""
        self._numbers[self._numbers[2]] = 0


class Changes:
    """Keeps, in three bits per row, which rows the next snapshot has to hold and which keys it has to take out.

    A key that came and went between two snapshots is in neither of them. So the number of removals that are kept is at
    most the number of rows in the last snapshot. The table announces each change before it makes it. A snapshot that is
    under way then copies the row as it was, so that the whole snapshot is of the moment at which it began.

    Caveat: use it under the table's lock only.
    """

    def __init__(self, memory):
        """
        Args:
          memory: see `Table`. What a snapshot holds lies there; a snapshot that is under way is its process's own.
        """
        self._present, self._changed, self._saved = self._sets = [
            Bits(memory.array(name, np.uint8)) for name in ("present", "changed", "saved")
        ]
        self._removed = RemovedKeys(memory)
        self._capture = None

    def before_change(self, table, slots):
        """Told by the table: the rows at `slots`, int64[U], are about to change."""
        if self._capture is not None:
            self._capture.keep(table, slots)
        self._changed.reserve(len(table.keys))  # Another process may have made some of these rows.
        self._changed.add(slots)

    def created(self, slots, size):
        """Told by the table: the slots, int64[U], got new rows; the table has `size` slots now."""
        for each in self._sets:
            each.reserve(size)
        self._present.add(slots)
        self._changed.add(slots)

    def before_removal(self, table, slots):
        """Told by the table: the rows at `slots`, int64[U], and their keys are about to be removed."""
        if self._capture is not None:
            self._capture.keep(table, slots)
        self._reserve(table)
        self._removed.add(table.keys[slots[self._saved.among(slots)]])
        for each in self._sets:
            each.remove(slots)

    def before_clear(self, table):
        """Told by the table: all rows are about to be removed. No delta can follow the last snapshot."""
        self._reserve(table)
        for each in self._sets:
            each.clear()
        self._removed.clear()
        self._capture = None

    def restored(self, table):
        """Told by the store: the table now is what its last snapshot holds."""
        self._reserve(table)
        self._removed.clear()
        self._changed.clear()
        self._reserve(table)
        self._saved.become(self._present)

    def begin(self, table, full):
        """Begins a snapshot of the table as it is now.

        Args:
          table: the `Table`.
          full: whether the snapshot holds all rows; else only those that changed since the last snapshot.

        Returns:
          `Capture`.
        """
        self._reserve(table)
        pending = self._present.copy() if full else self._changed.copy()
        self._saved.become(self._present)
        removed = self._removed.take()
        self._changed.clear()
        self._reserve(table)
        self._capture = Capture(table, pending, removed[:0] if full else removed)
        return self._capture

    def _reserve(self, table):
        """Makes room for all slots of the table: another process may have made some of them."""
        for each in self._sets:
            each.reserve(len(table.keys))

    def end(self):
        """Ends the snapshot that is under way."""
        self._capture = None


class Capture:
    """The rows of a table at the moment a snapshot of it began, read block by block while the table goes on changing.

    Attributes:
      config: the TableConfig.
      counts: what `Admission.counts` returned; None if the table has no counting filter.
    """

    def __init__(self, table, pending, removed):
        """
        Args:
          table: the `Table`.
          pending: `Bits`, the slots to read.
          removed: int64[n], the keys that were removed since the last snapshot; valid until the next one begins.
        """
        self.config = table.config
        self.counts = table.limits.admission.counts() if table.limits.admission else None
        self._pending = pending
        self._removed = removed
        self._kept = []
        self._cursor = 0

    def removed(self):
        """-> int64[n], ascending: the keys removed since the last snapshot, including those that came back.

        Caveat: it takes time in proportion to the number of these keys, so call it without the table's lock.
        """
        return np.unique(self._removed)

    def keep(self, table, slots):
        """Copies the rows at `slots` that are still to be read. Call it under the table's lock."""
        slots = slots[self._pending.among(slots)]
        if len(slots):
            self._kept.append(_copy(table, slots))
            self._pending.remove(slots)

    def read(self, table):
        """Copies the next block. Call it under the table's lock.

        Returns:
          (keys int64[n], rows float32[n, width], use), where `use` is (last_used uint32[n], frequency uint32[n]), or
          None for a table that evicts no rows; None at the end.
        """
        if self._kept:
            return self._kept.pop()
        most = max(min(_BLOCK_BYTES // (self.config.width * 4 + 8), _BLOCK_ROWS), 1)
        slots, self._cursor = self._pending.pop(self._cursor, most, remove=True)
        return _copy(table, slots) if len(slots) else None


def _copy(table, slots):
    return table.keys[slots], table.take(slots), table.use_of(slots)
