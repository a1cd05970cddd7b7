"""Tracks the changes of a table since its last snapshot, and since the last epoch of its publication."""

from __future__ import annotations

import numpy as np

from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.table.row_space import Bits, RowWatcher, WatchedTable
from ctr_trainer.system.messages.errors import UserError

# The size of a block, whose rows are copied while the table's lock is held: a step waits for at most one block. It is
# small, because a thread may lose its core while it holds the lock.
_BLOCK_BYTES, _BLOCK_ROWS = 1 << 20, 1 << 16

Block = tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray] | None]  # Keys, rows, and (last_used, frequency).


class RemovedKeys:
    """A list of removed keys."""

    def __init__(self, memory: TableMemory) -> None:
        self._array, self._free = memory.array("removed", np.int64), memory.free
        self._count = memory.counts("removed", 1)

    def add(self, keys: np.ndarray) -> None:
        """Appends keys, int64[n]."""
        count, after = self._count[0], self._count[0] + len(keys)
        self._array.reserve(after)
        self._array.array[count:after] = keys
        self._count[0] = after

    def take(self) -> np.ndarray:
        """Returns int64[n], the keys removed since the last `take`, in order."""
        keys = self._array.array[: self._count[0]].copy()
        self._array.release(0, len(keys), self._free)
        self._count[0] = 0
        return keys

    def clear(self) -> None:
        self._count[0] = 0


class Changes(RowWatcher):
    """Tracks, in three bits per row, which rows the next snapshot must contain and which keys it must remove.

    The bits are: changed since the last snapshot began; taken by the last snapshot; known from any snapshot. A key that
    was added and removed between two snapshots is in neither of them. So at most as many removals are kept as rows are
    known. The table announces each change before it makes it. If a snapshot is being taken, it then copies the
    unchanged row, so that the whole snapshot shows the table at the moment when the snapshot began.

    Caveat: use it only under the table's lock. The bits and removed keys lie in `memory`, but the state of a running
    snapshot is local to its process.
    """

    def __init__(self, memory: TableMemory) -> None:
        self._changed, self._taken, self._known = self._sets = [
            Bits(memory.array(name, np.uint8)) for name in ("changed", "taken", "known")
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
            each.remove(slots)  # If all rows were taken, free slots were taken too.
        self._changed.add(slots)

    def before_removal(self, table: WatchedTable, slots: np.ndarray) -> None:
        if self._capture is not None:
            self._capture.keep(table, slots)
        self._reserve(table)
        self._removed.add(table.keys[slots[self._known.among(slots)]])
        for each in self._sets:
            each.remove(slots)

    def before_clear(self, table: WatchedTable) -> None:
        self._reserve(table)
        for each in self._sets:
            each.clear()
        self._removed.clear()
        self._capture = None

    def restored(self, slots: np.ndarray) -> None:
        """Records that the last snapshot has the rows that were just put at `slots`, which may leave for the disk."""
        self._changed.remove(slots)
        self._known.add(slots)

    def begin(self, table: WatchedTable, full: bool, by_key: bool = False) -> Capture:
        """Begins a snapshot of the current table: all rows if `full`, else the changed rows; see `Capture`."""
        self._take(table, full)
        removed = self._removed.take()
        self._capture = Capture(table, self._taken, removed[:0] if full else removed, by_key=by_key)
        return self._capture

    def end(self) -> None:
        self._capture = None

    def _take(self, table: WatchedTable, full: bool) -> None:
        """Makes the changed rows, or all rows, the taken rows."""
        self._reserve(table)
        if full:
            self._changed.fill(len(table.keys))  # Includes free slots, which `Capture.read` skips.
        self._taken.become(self._changed)
        self._known.update(self._changed)
        self._changed.clear()

    def _reserve(self, table: WatchedTable) -> None:
        """Makes room for all slots of the table, because another process may have created some of them."""
        for each in self._sets:
            each.reserve(len(table.keys))


class PublishedRows(Changes):
    """Tracks in the same way which rows the next epoch of a publication must contain and which keys it must remove.

    Unlike a snapshot, an epoch does not show the table at one moment. It contains the rows that changed before it
    began, each with its weights when its block is read. Later changes go into the next epoch.

    The rows and removals of an epoch are kept until the next epoch begins. The call that begins it names the last
    published epoch. If that is an earlier epoch than the last one taken, the new epoch repeats the rows and removals of
    the unpublished epoch. So nothing is lost if an epoch cannot be written, or if only some shards have written it.

    Of rows that go to disk before they are published, the keys are kept, 8 bytes each, and an epoch reads the rows.

    Caveat: use it only under the table's lock. Several processes may announce changes, but only one may take epochs.
    """

    def __init__(self, memory: TableMemory) -> None:
        super().__init__(memory.under("published"))
        self._removed_taken, self._left_taken = np.empty(0, np.int64), np.empty(0, np.int64)
        self._left = list[np.ndarray]()  # The keys of rows that went to disk since the last epoch.
        self._epoch: int | None = None
        self._after: int | None = None

    def before_clear(self, table: WatchedTable) -> None:
        super().before_clear(table)
        self._removed_taken, self._left_taken = np.empty(0, np.int64), np.empty(0, np.int64)
        self._left.clear()
        self._epoch = self._after = None

    def before_leaving(self, table: WatchedTable, slots: np.ndarray) -> None:
        self._reserve(table)
        # A row that the last epoch took may not be read yet.
        self._left.append(table.keys[slots[self._changed.among(slots) | self._taken.among(slots)]])
        for each in self._sets:
            each.remove(slots)

    def returned(self, slots: np.ndarray) -> None:
        self._known.add(slots)

    def removed_on_disk(self, keys: np.ndarray) -> None:
        self._removed.add(keys)

    def begin_epoch(self, table: WatchedTable, epoch: int, after: int | None) -> Capture:
        """Begins epoch `epoch`; `after` is the last published epoch, or None to take all rows.

        Raises UserError: the changes since epoch `after` are not known.
        """
        if after is None:
            self.before_clear(table)
        elif after not in (self._epoch, self._after) or self._epoch is None:
            raise UserError(
                f"table {table.config.name}: what changed since epoch {after} is not known, the last epoch taken is "
                f"{self._epoch}: publish all rows"
            )
        elif after != self._epoch:
            self._reserve(table)
            self._changed.update(self._taken)
            self._removed.add(self._removed_taken)
            self._left.append(self._left_taken)
        self._epoch, self._after = epoch, after
        self._take(table, full=after is None)
        removed = np.unique(self._removed.take())
        # A key that was added again has changed, so this epoch or an earlier one contains its row.
        self._removed_taken = removed[~table.has(removed)]
        self._left_taken, self._left = np.unique(np.concatenate([removed[:0], *self._left])), []
        left = None if after is None else self._left_taken
        return Capture(table, self._taken, self._removed_taken, weights_only=True, left=left)


class Capture:
    """The rows of a snapshot or an epoch, read in blocks while the table changes.

    Attributes:
      config: the TableConfig.
      counts: the result of `Admission.counts`; None if the table has no counting filter.
      removed: int64[n], the keys removed since the last snapshot or epoch. The keys of an epoch are ascending, and no
        key is both in a block and in them.
      left: int64[n], keys of an epoch whose rows went to disk before it; None for all rows on disk.
    """

    def __init__(
        self,
        table: WatchedTable,
        taken: Bits,
        removed: np.ndarray,
        *,
        weights_only: bool = False,
        by_key: bool = False,
        left: np.ndarray | None = None,
    ) -> None:
        """Reads the rows `taken`, or only their weights; the table removes each removed row from `taken`.

        With `by_key`, the rows that do not change meanwhile come in the order of their keys. This takes 24 bytes of
        memory per row.
        """
        self.config, self.counts, self.removed = table.config, table.admission_counts(), removed
        self.left = left
        self._taken, self._weights_only, self._cursor = taken, weights_only, 0
        self._columns = table.config.weights if weights_only else table.config.width
        self._kept: list[Block] = []
        self._order: np.ndarray | None = None  # The slots that were not read yet, by key.
        if by_key:
            slots, _ = taken.next(0, len(table.keys))
            self._order = slots[np.argsort(table.keys[slots])]

    def took(self, slots: np.ndarray) -> np.ndarray:
        """Returns bool[U], whether each row at `slots` was there when the epoch began."""
        return self._taken.among(slots)

    def keep(self, table: WatchedTable, slots: np.ndarray) -> None:
        """Copies those rows at `slots` that were not read yet. Call it under the table's lock."""
        slots = slots[self._taken.among(slots)]
        slots = slots if self._order is not None else slots[slots >= self._cursor]
        if len(slots):
            self._kept.append(self._copy(table, slots))
            self._taken.remove(slots)

    def read(self, table: WatchedTable) -> Block | None:
        """Copies the next block; returns None at the end. Call it under the table's lock.

        A block is (keys int64[n], rows float32[n, columns], use). `use` is (last_used uint32[n], frequency uint32[n]),
        or None for a table that evicts no rows.
        """
        if self._kept:
            return self._kept.pop()
        most = max(min(_BLOCK_BYTES // (self._columns * 4 + 8), _BLOCK_ROWS), 1)
        while True:
            if self._order is None:
                slots, self._cursor = self._taken.next(self._cursor, most)
            else:
                slots, self._order = self._order[:most], self._order[most:]
            if not len(slots):
                return None
            if self._order is not None:
                slots = slots[self._taken.among(slots)]  # The others were kept meanwhile.
                self._taken.remove(slots)
            slots = slots[table.keys[slots] != 0]
            if len(slots):
                return self._copy(table, slots)

    def _copy(self, table: WatchedTable, slots: np.ndarray) -> Block:
        return table.keys[slots], table.take(slots, self._weights_only), table.use_of(slots)
