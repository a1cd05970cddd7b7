"""Who has to know which rows of a table come, change and go."""

from collections.abc import Callable

import numpy as np

from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.table.changes import Changes, RemovedKeys, TrackedTable
from ctr_trainer.embedding.table.row_limits import RowUsage
from ctr_trainer.embedding.table.row_space import Bits
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError

# A step waits for a block at most: its rows are copied under the lock of the rows.
_BLOCK_BYTES = 1 << 20


class PublishedRows:
    """Keeps, in three bits per row, which rows the next epoch has to hold and which keys it has to take out.

    Unlike `Changes` it keeps no moment: an epoch is of the rows that changed before it began, each copied as it is when
    its block is read. What changes, comes or goes meanwhile is for the next epoch.

    What an epoch has taken stays known until the next one begins. That one says which epoch was the last to be
    published. If it was the previous one, all that was taken since is taken again: nothing is lost if an epoch cannot
    be written, or if only some shards have written theirs.

    Caveat: use it under the table's lock only. Several processes may announce changes, and one takes epochs.
    """

    def __init__(self, memory: TableMemory) -> None:
        memory = memory.under("published")
        self._changed, self._taken, self._published = self._sets = [
            Bits(memory.array(name, np.uint8)) for name in ("changed", "taken", "published")
        ]
        self._removed, self._removed_taken = RemovedKeys(memory), np.empty(0, np.int64)
        self._epoch: int | None = None
        self._after: int | None = None

    def before_change(self, table: TrackedTable, slots: np.ndarray) -> None:
        """Notes that the rows at `slots`, int64[U], are about to change."""
        self._changed.reserve(len(table.keys))  # Another process may have made some of these rows.
        self._changed.add(slots)

    def created(self, slots: np.ndarray, size: int) -> None:
        """Notes that the slots, int64[U], got new rows; the table has `size` slots now."""
        self._changed.reserve(size)
        self._changed.add(slots)

    def before_removal(self, table: TrackedTable, slots: np.ndarray) -> None:
        """Notes that the rows at `slots`, int64[U], and their keys are about to be removed."""
        self._reserve(table)
        self._removed.add(table.keys[slots[self._published.among(slots)]])
        for each in self._sets:
            each.remove(slots)

    def before_clear(self, table: TrackedTable) -> None:
        """Notes that all rows are about to be removed. Only an epoch with all rows can follow."""
        self._forget(table)
        self._epoch = self._after = None

    def begin(self, table: TrackedTable, epoch: int, after: int | None) -> "Taking":
        """Begins to take an epoch, after the epoch that was published last; None to take all rows.

        Raises:
          UserError: another epoch was taken here last.
        """
        if after is None:
            self._forget(table)
            self._changed.fill(len(table.keys))  # The free slots too: `read` skips them.
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
        # A key that has come back has changed, so this epoch or one before it has its row.
        self._removed_taken = removed[table.find_and_count(removed)[0] < 0]
        return Taking(table.config, self._taken, self._removed_taken)

    def _forget(self, table: TrackedTable) -> None:
        self._reserve(table)
        for each in self._sets:
            each.clear()
        self._removed.clear()
        self._removed_taken = np.empty(0, np.int64)
        self._reserve(table)

    def _reserve(self, table: TrackedTable) -> None:
        """Makes room for all slots of the table: another process may have made some of them."""
        for each in self._sets:
            each.reserve(len(table.keys))


class Taking:
    """An epoch that is being taken, block by block under the table's lock, while the table changes.

    A key is in a block or among `removed`, and never in both.

    Attributes:
      removed: int64[n], ascending: the published keys that went since the last epoch, and that the table did not have
        when this one began.
    """

    def __init__(self, config: TableConfig, slots: Bits, removed: np.ndarray) -> None:
        """Reads `slots`; the table takes out each slot whose row is removed."""
        self.config, self.removed = config, removed
        self._slots, self._cursor = slots, 0
        self._most = max(_BLOCK_BYTES // (config.weights * 4), 1)

    def read(self, table: TrackedTable) -> tuple[np.ndarray, np.ndarray] | None:
        """Copies the next block, (keys int64[n], weights float32[n, weights]); None at the end."""
        while True:
            slots, self._cursor = self._slots.pop(self._cursor, self._most)
            if not len(slots):
                return None
            slots = slots[table.keys[slots] != 0]
            if len(slots):
                return table.keys[slots], table.take(slots, self.config.weights)


class RowWatchers:
    """Who is told of changes of a table's rows: its next snapshot, its publication, its limits, its followers.

    Caveat: use it under the table's lock only.

    Attributes:
      changes: `Changes` since the last snapshot; None unless `tracked`.
      published: `PublishedRows`; None until `keep_published`.
    """

    def __init__(self, memory: TableMemory, tracked: bool, usage: RowUsage | None) -> None:
        self._memory, self._usage = memory, usage
        self.changes = Changes(memory) if tracked else None
        self.published: PublishedRows | None = None
        self._told: list[Changes | PublishedRows] = [] if self.changes is None else [self.changes]
        self._followers: list[Callable[[np.ndarray, int], None]] = [
            each.created for each in (self.changes, usage) if each is not None
        ]

    def follow(self, created: Callable[[np.ndarray, int], None]) -> None:
        """Has `created(slots int64[U], size)` called whenever slots, new or used before, get new rows."""
        self._followers.append(created)

    def keep_published(self) -> None:
        """Has `published` kept from now on. If it is kept already, this does nothing."""
        if self.published is None:
            self.published = PublishedRows(self._memory)
            self._told.append(self.published)
            self.follow(self.published.created)

    def created(self, first: int, size: int, reused: np.ndarray) -> None:
        """Tells that the slots from `first` on, and those in `reused`, int64[n], got new rows; there are `size` now."""
        if self._followers:
            slots = np.concatenate([np.arange(first, size), reused])
            for created in self._followers:
                created(slots, size)

    def before_change(self, table: TrackedTable, slots: np.ndarray) -> None:
        for each in self._told:
            each.before_change(table, slots)
        if self._usage is not None:
            self._usage.trained(slots, len(table.keys))

    def before_removal(self, table: TrackedTable, slots: np.ndarray) -> None:
        for each in self._told:
            each.before_removal(table, slots)

    def before_clear(self, table: TrackedTable) -> None:
        for each in self._told:
            each.before_clear(table)
