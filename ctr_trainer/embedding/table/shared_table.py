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
    """A `Table` whose lookups and steps hold the lock of its rows.

    So another thread may copy whole rows, and take what is to be published, within `locked`.
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
        """Returns the slots, int64[U], with -1 for each row that was removed since the lookup."""
        return slots


def published_table(config: TableConfig, most_rows: int | None) -> LockedTable:
    """Makes a table of a `LocalStore` whose process publishes it."""
    table = LockedTable(config, True, most_rows)
    table.watchers.keep_published()
    return table


class SharedTable(LockedTable):
    """A `LockedTable` whose rows lie in memory that several processes share, each through a SharedTable of its own.

    Staleness: none between the workers of the host. A step reads the rows with every step that another worker has
    finished; while another step runs, it reads some rows before that step and some after it, as in Hogwild.
    Unlike in Hogwild no update is lost: workers step rows one after the other, under a lock. Two runs differ in the
    order of the workers' steps.

    Limits on which keys have rows count for all workers together. A row that one worker evicts may be one that another
    worker is about to train: then that gradient goes with the row. No other row gets it, see `RestingSlots`.

    Source: Niu et al., Hogwild: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent, NeurIPS 2011.
    """

    def __init__(
        self, config: TableConfig, tracked: bool, memory: SharedMemory, member: int = 0, members: int = 1
    ) -> None:
        """The owner of the memory makes its SharedTable first; for `member` and `members` see `RestingSlots`.

        Raises:
          UserError: the memory cannot be had, see `SharedMemory`.
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

    If `is_published`, the workers announce changes of the rows to `PublishedRows`; for the others see `RestingSlots`.
    """

    def __init__(self, memory: SharedMemory, member: int = 0, members: int = 1, is_published: bool = False) -> None:
        self._memory, self._member, self._members = memory, member, members
        self._is_published = is_published

    def __call__(self, config: TableConfig, most_rows: int | None) -> SharedTable:
        table = SharedTable(config, True, self._memory.under(config.name), self._member, self._members)
        if self._is_published:
            table.watchers.keep_published()
        return table
