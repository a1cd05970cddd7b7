"""A table that the workers of one host train together."""

import numpy as np

from ctr_trainer.embedding.table.table import Table
from ctr_trainer.messages.errors import UserError


class SharedTable(Table):
    """A `Table` whose rows lie in memory that several processes share, each through a SharedTable of its own.

    Staleness: none between the workers of the host. A step reads the rows with every step that another worker has
    finished; beside a step that is under way, it reads some rows before that step and some after it, as in Hogwild.
    Unlike in Hogwild no update is lost: workers step rows one after the other, under a lock. Two runs differ in the
    order of the workers' steps.

    Caveat: limits on which keys have rows are not possible. The counters of `stats`, except `rows`, are this process's.

    Source: Niu et al., Hogwild: A Lock-Free Approach to Parallelizing Stochastic Gradient Descent, NeurIPS 2011.
    """

    def __init__(self, config, tracked, memory):
        """
        Args:
          config, tracked: see `Table`.
          memory: `SharedMemory`, in which the owner makes its SharedTable first.

        Raises:
          UserError: the table has limits, or the memory cannot be had, see `SharedMemory`.
        """
        if config != config.without_limits():
            raise UserError(
                f"table {config.name}: [[limits]] of the feature spec need an embedding service, and this job's "
                "workers share their rows: use --embedding_service=auto, or leave out the limits"
            )
        super().__init__(config, tracked, memory=memory)
        self._lock = memory.lock("table")

    @property
    def lock_times(self):
        return self._lock.times

    def find(self, keys):
        with self._lock.shared():
            return super().find(keys)

    def find_or_make(self, keys):
        slots = self.find(keys)
        if np.any((slots < 0) & (keys != 0)):
            with self._lock.alone():
                slots = super().find_or_make(keys)
        return slots

    def apply_gradients(self, slots, gradients, learning_rate):
        with self._lock.alone():
            super().apply_gradients(slots, gradients, learning_rate)


class SharedTables:
    """Makes the SharedTables of one process; a `LocalStore` calls it for each table.

    Args:
      memory: `SharedMemory`.
    """

    def __init__(self, memory):
        self._memory = memory

    def __call__(self, config, tracked, most_rows):
        return SharedTable(config, tracked, self._memory.under(config.name))
