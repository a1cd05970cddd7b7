"""A table that the workers of one host train together."""

import numpy as np

from ctr_trainer.embedding.index.resting_slots import RestingSlots
from ctr_trainer.embedding.table.row_space import SharedRowSpace
from ctr_trainer.embedding.table.table import Table


class SharedTable(Table):
    """A `Table` whose rows lie in memory that several processes share, each through a SharedTable of its own.

    Staleness: none between the workers of the host. A step reads the rows with every step that another worker has
    finished; beside a step that is under way, it reads some rows before that step and some after it, as in Hogwild.
    Unlike in Hogwild no update is lost: workers step rows one after the other, under a lock. Two runs differ in the
    order of the workers' steps.

    Limits on which keys have rows count for all workers together. A row that one worker evicts may be one that another
    worker is about to train: then that gradient goes with the row. No other row gets it, see `RestingSlots`.

    Source: Niu et al., Hogwild: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent, NeurIPS 2011.
    """

    def __init__(self, config, tracked, memory, member=0, members=1):
        """
        Args:
          config, tracked: see `Table`.
          memory: `SharedMemory`, in which the owner makes its SharedTable first.
          member, members: see `RestingSlots`.

        Raises:
          UserError: the memory cannot be had, see `SharedMemory`.
        """
        has_limits = config != config.without_limits()
        space = SharedRowSpace(memory, config.width, member, members) if has_limits else None
        self._resting = RestingSlots(memory, member, members) if config.evicts else None
        super().__init__(config, tracked, memory=memory, space=space, resting=self._resting)
        self._lock = memory.lock("table")

    @property
    def lock_times(self):
        return self._lock.times

    def find(self, keys):
        with self._lock.shared():
            return super().find(keys)

    def find_or_create(self, keys):
        if self._resting is not None:
            self._resting.begin_lookup()
        return super().find_or_create(keys)

    def find_or_make(self, keys):
        with self._lock.shared():
            slots, unknown = self._index.find_and_count(keys)
        if unknown:
            with self._lock.alone():
                self._make_missing(keys, slots)
        return slots

    def apply_gradients(self, slots, gradients, learning_rate):
        with self._lock.alone():
            super().apply_gradients(self._alive(slots), gradients, learning_rate)

    def expire(self, start=0):
        with self._lock.alone():
            return super().expire(start)

    def _alive(self, slots):
        """-> int64[U], the slots, with -1 in place of those whose rows another worker has evicted since."""
        if self._resting is None:
            return slots
        own = np.flatnonzero((slots >= 0) & (slots < self._index.slots))
        slots = slots.copy()
        slots[own[self.keys[slots[own]] == 0]] = -1
        return slots


class SharedTables:
    """Makes the SharedTables of one process; a `LocalStore` calls it for each table.

    Args:
      memory: `SharedMemory`.
      member, members: see `RestingSlots`.
    """

    def __init__(self, memory, member=0, members=1):
        self._memory, self._member, self._members = memory, member, members

    def __call__(self, config, tracked, most_rows):
        return SharedTable(config, tracked, self._memory.under(config.name), self._member, self._members)
