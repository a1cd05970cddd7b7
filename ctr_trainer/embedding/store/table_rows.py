"""The rows of a table in this process, or in memory that the workers of a host share."""

from ctr_trainer.embedding.store.worker_rows import WorkerRows


class TableRows(WorkerRows):
    """A `Table`'s own rows: a step changes what every other user of the table reads, so there is nothing to sync.

    For one thread at a time; a `SharedTable` locks its rows itself.

    Args:
      table: a `Table`.
    """

    def __init__(self, table):
        self.config = table.config
        self._table = table

    @property
    def rows(self):
        return self._table.rows

    @property
    def lock_times(self):
        return self._table.lock_times

    def find(self, keys):
        return self._table.find(keys)

    def find_or_create(self, keys, since=None):
        return self._table.find_or_create(keys)

    def apply_gradients(self, slots, gradients, learning_rate):
        self._table.apply_gradients(slots, gradients, learning_rate)

    def found_again(self, keys, slots):
        # New rows of a later micro-batch may have evicted rows of an earlier micro-batch.
        return self._table.find(keys)
