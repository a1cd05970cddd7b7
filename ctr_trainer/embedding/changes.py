"""What changed in a table since its last snapshot."""

import numpy as np

from ctr_trainer.embedding.bits import Bits

_BLOCK_BYTES = 16 << 20


class Changes:
    """Keeps, in a quarter of a byte a row, which rows a snapshot has to hold, and which keys it has to take out.

    A key that came and went between two snapshots is in neither, so at most as many removals are kept as the last
    snapshot has rows. The table tells of each change before it makes it: a snapshot that is under way first keeps the
    row as it was, so that all of it is of the moment at which it began.

    Caveat: under the table's lock only.
    """

    def __init__(self, memory):
        """`memory`: see `Table`; which rows changed lies there, the rest is of who takes the snapshots."""
        self._changed = Bits(memory.array("changed", np.uint8))
        self._saved = Bits()
        self._removed = []
        self._capture = None

    def before_change(self, table, slots):
        """The rows of these slots, int64[U], are about to change."""
        if self._capture is not None:
            self._capture.keep(table, slots)
        self._changed.reserve(len(table.keys))  # Another process may have made some of them.
        self._changed.add(slots)

    def created(self, slots, size):
        """These slots, int64[U], got a row; the table has `size` slots now."""
        self._changed.reserve(size)
        self._saved.reserve(size)
        self._changed.add(slots)

    def before_removal(self, table, slots):
        """The rows of these slots, int64[U], are about to go, and their keys with them."""
        if self._capture is not None:
            self._capture.keep(table, slots)
        self._removed.append(table.keys[slots[self._saved.among(slots)]])
        self._changed.remove(slots)
        self._saved.remove(slots)

    def clear(self):
        """The table is empty, and no snapshot of it is left to add to."""
        self._changed.clear()
        self._saved.clear()
        self._removed.clear()
        self._capture = None

    def restored(self, table):
        """The table is as its last snapshot has it."""
        self.clear()
        self._saved.fill(table.keys)
        self._changed.reserve(len(table.keys))

    def begin(self, table, full):
        """Begins a snapshot of the table as it is now. -> Capture"""
        keys = table.keys
        self._changed.reserve(len(keys))
        removed = np.unique(np.concatenate(self._removed)) if self._removed and not full else np.empty(0, np.int64)
        if full:
            pending = Bits()
            pending.fill(keys)
        else:
            pending = self._changed.copy()
            removed = removed[table.find(removed) < 0]
        self._removed.clear()
        self._changed.clear()
        self._changed.reserve(len(keys))
        self._saved.fill(keys)
        self._capture = Capture(table, pending, removed)
        return self._capture

    def end(self):
        """Ends the snapshot that is under way."""
        self._capture = None


class Capture:
    """The rows of a table at the moment a snapshot of it began, read block by block while the table goes on changing.

    Attributes:
      config: the TableConfig.
      removed: int64[n], the keys that the snapshot before has and the table has no more.
      counts: what the table's counting filter has counted, or None; see `Admission.counts`.
      use: (keys int64[n], last_used uint32[n], frequency uint32[n]) of the rows, or None of a table that evicts none.
    """

    def __init__(self, table, pending, removed):
        self.config = table.config
        self.removed = removed
        self.counts = table.admission.counts() if table.admission else None
        self.use = table.use_of(pending.slots()) if table.config.evicts else None
        self._pending = pending
        self._kept = []
        self._cursor = 0

    def keep(self, table, slots):
        """Copies those of these rows that are still to be read. Under the table's lock."""
        slots = slots[self._pending.among(slots)]
        if len(slots):
            self._kept.append((table.keys[slots], table.take(slots)))
            self._pending.remove(slots)

    def read(self, table):
        """-> the next (keys int64[n], rows float32[n, width]), copies; None at the end. Under the table's lock."""
        if self._kept:
            return self._kept.pop()
        most = max(_BLOCK_BYTES // (self.config.width * 4 + 8), 1)
        slots, self._cursor = self._pending.pop(self._cursor, most, remove=True)
        return (table.keys[slots], table.take(slots)) if len(slots) else None
