"""A table whose rows one thread trains while others read them."""

from ctr_trainer.embedding.memory.growable_array import PrivateMemory
from ctr_trainer.embedding.table.table import Table


class LockedTable(Table):
    """A `Table` whose lookups and steps hold the lock of its rows.

    So another thread may copy whole rows, and take what is to be published, within `locked`.

    Args:
      config, tracked, most_rows, memory, space, resting: see `Table`.
    """

    def __init__(self, config, tracked=False, most_rows=None, memory=None, space=None, resting=None):
        memory = memory or PrivateMemory()
        super().__init__(config, tracked, most_rows, memory, space, resting)
        self._lock = memory.lock("table")

    @property
    def lock_times(self):
        return self._lock.times

    def locked(self):
        return self._lock.alone()

    def find(self, keys):
        with self._lock.shared():
            return super().find(keys)

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
        """-> int64[U], the slots, with -1 in place of those whose rows have gone since the lookup."""
        return slots


class PublishedTables:
    """Makes the tables of one process that publishes them; a `LocalStore` calls it for each table."""

    def __call__(self, config, tracked, most_rows):
        table = LockedTable(config, tracked, most_rows)
        table.watchers.keep_published()
        return table
