"""The rows of one table, as one worker looks them up and trains them."""

import abc
import contextlib
import dataclasses
from typing import Protocol

from ctr_trainer.embedding.memory.row_lock import LockTimes
from ctr_trainer.embedding.table.table_config import TableConfig


@dataclasses.dataclass(frozen=True)
class RowTotals:
    """What became of the lookups and syncs since the start.

    Attributes:
      hits: distinct keys that a lookup found here and up to date.
      misses: distinct keys that a lookup asked the store for.
      bytes_synced: bytes of keys, versions and rows that went to and came from the store.
    """

    hits: int = 0
    misses: int = 0
    bytes_synced: int = 0

    def __add__(self, other):
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return RowTotals(*(one + another for one, another in pairs))


class WorkerRows(Protocol):
    """The rows of one table that a worker trains: the table's own, or copies that `sync` brings to the store.

    Slots say where in `rows` a row lies. They are valid until the next lookup or sync.

    Attributes:
      config: the TableConfig.
      are_copies: whether they are copies of a store's rows.
      is_synced_here: whether this worker syncs them; then each part of a sync has to be called, else none has.
      lock_times: what this worker's threads have held and waited for the lock of the rows; none without a lock.
    """

    config: TableConfig
    are_copies = is_synced_here = False
    lock_times = LockTimes()

    @property
    @abc.abstractmethod
    def rows(self):
        """float32[n, width], in slot order; a view, to be read within `locked`."""

    @abc.abstractmethod
    def find(self, keys):
        """int64[U] -> int64[U] slots; no row is created, and a key without a row has the slot -1 or reads zeros."""

    @abc.abstractmethod
    def find_or_create(self, keys, since=None):
        """int64[U] -> int64[U] slots; a key without a row gets its initial one.

        Args:
          since: what `pull_ahead` returned for these keys; None for keys that were not pulled ahead.
        """

    @abc.abstractmethod
    def apply_gradients(self, slots, gradients, learning_rate):
        """One optimizer step of the rows at `slots`, as `Table.apply_gradients`."""

    def begin(self):
        """Called before the first lookup, when the store has the rows that there are to begin with."""

    def locked(self):
        """-> context manager to be held while `rows` is read."""
        return contextlib.nullcontext()

    def measured(self, latency):
        """-> context manager that records a lookup or a step with `latency`, if no request to a store stands for it."""
        return contextlib.nullcontext()

    def found_again(self, keys, slots):
        """-> int64[U], the slots of `keys` that earlier lookups of this step gave `slots`; -1 of a row gone since."""
        return slots

    def l2_shares(self, slots):
        """-> float32[U], what L2 of the rows at `slots` counts for, see `merging`; None if it counts in full."""

    def pull_ahead(self, keys):
        """Has the rows of int64[U] `keys` here before they are looked up. -> `since` for that lookup"""

    def begin_window(self):
        """Starts a sync; `sync_window` has to follow before the next one."""

    def sync_window(self):
        """The sync itself: sends what this worker changed and takes what others changed."""

    def flush(self):
        """A sync after which the store has all that this worker changed, to the bit."""

    def push(self):
        """The first half of a strict sync: a flush. `refresh` has to follow, after a barrier."""

    def refresh(self):
        """The second half of a strict sync: takes what all workers' pushes made of the rows."""

    def totals(self):
        """-> RowTotals."""
        return RowTotals()
