"""A table that the workers of one host train together."""

import numpy as np

from ctr_trainer.embedding.index.resting_slots import RestingSlots
from ctr_trainer.embedding.table.locked_table import LockedTable
from ctr_trainer.embedding.table.row_space import SharedRowSpace


class SharedTable(LockedTable):
    """A `LockedTable` whose rows lie in memory that several processes share, each through a SharedTable of its own.

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
        space = SharedRowSpace(memory, config.width, member, members) if config.has_limits else None
        self._resting = RestingSlots(memory, member, members) if config.evicts else None
        super().__init__(config, tracked, memory=memory, space=space, resting=self._resting)

    def find_or_create(self, keys):
        if self._resting is not None:
            self._resting.begin_lookup()
        return super().find_or_create(keys)

    def _alive(self, slots):
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
      is_published: whether the workers announce changes of the rows to `PublishedRows`.
    """

    def __init__(self, memory, member=0, members=1, is_published=False):
        self._memory, self._member, self._members = memory, member, members
        self._is_published = is_published

    def __call__(self, config, tracked, most_rows):
        table = SharedTable(config, tracked, self._memory.under(config.name), self._member, self._members)
        if self._is_published:
            table.watchers.keep_published()
        return table
