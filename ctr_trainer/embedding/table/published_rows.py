"""Tracks the changes of a table since the last epoch of its publication."""

import numpy as np

from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.table.changes import RemovedKeys
from ctr_trainer.embedding.table.row_space import Bits
from ctr_trainer.embedding.table.row_watcher import RowWatcher, WatchedTable
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError

# The size of a block, whose rows are copied under the table's lock: a step waits for at most one block.
_BLOCK_BYTES = 1 << 20


class PublishedRows(RowWatcher):
    """Tracks, in three bits per row, which rows the next epoch must contain and which keys it must remove.

    Unlike a snapshot of `Changes`, an epoch does not show the table at one moment. It contains the rows that changed
    before it began, each with its values when its block is read. Later changes go into the next epoch.

    The rows and removals of an epoch are kept until the next epoch begins. The call that begins it names the last
    published epoch. If that is an earlier epoch than the last one taken, the new epoch repeats the rows and removals of
    the unpublished epoch. So nothing is lost if an epoch cannot be written, or if only some shards have written it.

    Caveat: use it only under the table's lock. Several processes may announce changes, but only one may take epochs.
    """

    def __init__(self, memory: TableMemory) -> None:
        memory = memory.under("published")
        self._changed, self._taken, self._published = self._sets = [
            Bits(memory.array(name, np.uint8)) for name in ("changed", "taken", "published")
        ]
        self._removed, self._removed_taken = RemovedKeys(memory), np.empty(0, np.int64)
        self._epoch: int | None = None
        self._after: int | None = None

    def before_change(self, table: WatchedTable, slots: np.ndarray) -> None:
        self._changed.reserve(len(table.keys))  # Another process may have created some of these rows.
        self._changed.add(slots)

    def created(self, slots: np.ndarray, size: int) -> None:
        self._changed.reserve(size)
        self._changed.add(slots)

    def before_removal(self, table: WatchedTable, slots: np.ndarray) -> None:
        self._reserve(table)
        self._removed.add(table.keys[slots[self._published.among(slots)]])
        for each in self._sets:
            each.remove(slots)

    def before_clear(self, table: WatchedTable) -> None:
        # The next epoch must contain all rows.
        self._forget(table)
        self._epoch = self._after = None

    def begin(self, table: WatchedTable, epoch: int, after: int | None) -> "Taking":
        """Begins epoch `epoch`; `after` is the last published epoch, or None to take all rows.

        Raises:
          UserError: the changes since epoch `after` are not known.
        """
        if after is None:
            self._forget(table)
            self._changed.fill(len(table.keys))  # Includes free slots, which `read` skips.
        elif after not in (self._epoch, self._after) or self._epoch is None:
            raise UserError(
                f"table {table.config.name}: what changed since epoch {after} is not known, the last epoch taken is "
                f"{self._epoch}: publish all rows"
            )
        elif after != self._epoch:
            self._reserve(table)
            self._changed.update(self._taken)
            self._removed.add(self._removed_taken)
        self._epoch, self._after = epoch, after
        self._reserve(table)
        self._taken.become(self._changed)
        self._published.update(self._changed)
        self._changed.clear()
        self._reserve(table)
        removed = np.unique(self._removed.take())
        # A key that was added again has changed, so this epoch or an earlier one contains its row.
        self._removed_taken = removed[table.find_and_count(removed)[0] < 0]
        return Taking(table.config, self._taken, self._removed_taken)

    def _forget(self, table: WatchedTable) -> None:
        self._reserve(table)
        for each in self._sets:
            each.clear()
        self._removed.clear()
        self._removed_taken = np.empty(0, np.int64)
        self._reserve(table)

    def _reserve(self, table: WatchedTable) -> None:
        """Makes room for all slots of the table, because another process may have created some of them."""
        for each in self._sets:
            each.reserve(len(table.keys))


class Taking:
    """An epoch that is being taken, in blocks under the table's lock, while the table changes.

    No key is both in a block and in `removed`.

    Attributes:
      removed: int64[n], ascending: the published keys that were removed since the last epoch and were not in the table
        when this epoch began.
    """

    def __init__(self, config: TableConfig, slots: Bits, removed: np.ndarray) -> None:
        """Reads `slots`; the table removes from it each slot whose row is removed."""
        self.config, self.removed = config, removed
        self._slots, self._cursor = slots, 0
        self._most = max(_BLOCK_BYTES // (config.weights * 4), 1)

    def read(self, table: WatchedTable) -> tuple[np.ndarray, np.ndarray] | None:
        """Copies the next block, (keys int64[n], weights float32[n, weights]); None at the end."""
        while True:
            slots, self._cursor = self._slots.pop(self._cursor, self._most)
            if not len(slots):
                return None
            slots = slots[table.keys[slots] != 0]
            if len(slots):
                return table.keys[slots], table.take(slots, self.config.weights)
