"""A table that the workers of one host train together."""

from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from ctr_trainer.embedding.index.hash_index import RestingSlots
from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.table.row_space import SharedRowSpace
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig


class LockedTable(Table):
    """A `Table` whose lookups and steps hold the lock of its rows, so that other threads can use it.

    Inside `locked`, another thread may copy consistent rows and take the rows to publish.
    """

    def locked(self) -> AbstractContextManager[None]:
        return self._lock.alone()

    def find(self, keys: np.ndarray) -> np.ndarray:
        with self._lock.shared():
            return super().find(keys)

    def find_or_make(self, keys: np.ndarray) -> np.ndarray:
        with self._lock.shared():
            slots, unknown = self._index.find_and_count(keys)
        if unknown:
            with self._lock.alone():
                self._make_missing(keys, slots)
        return slots

    def apply_gradients(self, slots: np.ndarray, gradients: Sequence[np.ndarray], learning_rate: float) -> None:
        with self._lock.alone():
            super().apply_gradients(self._alive(slots), gradients, learning_rate)

    def expire(self, start: int = 0) -> int | None:
        with self._lock.alone():
            return super().expire(start)

    def _alive(self, slots: np.ndarray) -> np.ndarray:
        """Returns the slots, int64[U], with -1 in place of each slot whose row was removed since the lookup."""
        return slots


def published_table(config: TableConfig, most_rows: int | None) -> LockedTable:
    """Makes a table for a `LocalStore` whose process publishes it."""
    table = LockedTable(config, True, most_rows)
    table.watchers.keep_published()
    return table


class SharedTable(LockedTable):
    """A `LockedTable` whose rows lie in memory that several processes share, each through its own SharedTable.

    Staleness: none between the workers of the host. A lookup sees every step that another worker has finished. While
    another worker's step runs, a lookup may see some rows before the step and some rows after it, as in Hogwild. Unlike
    in Hogwild, no update is lost, because workers update rows one after the other, under a lock. The order of the
    workers' steps differs between two runs.

    The limits on rows apply to all workers together. If one worker evicts a row that another worker is about to train,
    the gradient is dropped. No other row gets it, see `RestingSlots`.

    Source: Niu et al., Hogwild: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent, NeurIPS 2011.
    """

    def __init__(
        self, config: TableConfig, tracked: bool, memory: SharedMemory, member: int = 0, members: int = 1
    ) -> None:
        """The owner of the memory must make its SharedTable first; for `member` and `members` see `RestingSlots`.

        Raises:
          UserError: the memory cannot be opened, see `SharedMemory`.
        """
        space = SharedRowSpace(memory, config.width, member, members) if config.has_limits else None
        self._resting = RestingSlots(memory, member, members) if config.evicts else None
        super().__init__(config, tracked, memory=memory, space=space, resting=self._resting)

    def find_or_create(self, keys: np.ndarray) -> np.ndarray:
        if self._resting is not None:
            self._resting.begin_lookup()
        return super().find_or_create(keys)

    def _alive(self, slots: np.ndarray) -> np.ndarray:
        if self._resting is None:
            return slots
        own = np.flatnonzero((slots >= 0) & (slots < self._index.slots))
        slots = slots.copy()
        slots[own[self.keys[slots[own]] == 0]] = -1
        return slots


class SharedTables:
    """Makes the SharedTables of one process; a `LocalStore` calls it for each table.

    If `is_published`, the workers report row changes to `PublishedRows`; for `member` and `members` see `RestingSlots`.
    """

    def __init__(self, memory: SharedMemory, member: int = 0, members: int = 1, is_published: bool = False) -> None:
        self._memory, self._member, self._members = memory, member, members
        self._is_published = is_published

    def __call__(self, config: TableConfig, most_rows: int | None) -> SharedTable:
        table = SharedTable(config, True, self._memory.under(config.name), self._member, self._members)
        if self._is_published:
            table.watchers.keep_published()
        return table
