"""The rows of one table that all workers of a host train together, and that the host syncs with the service."""

import contextlib

import numpy as np

from ctr_trainer.embedding.worker.cached_rows import KEPT_WINDOWS
from ctr_trainer.embedding.worker.row_cache import RowCache

_HAS_ALL = 1  # Which of the cache's numbers says whether all rows that the service has are here.


class HostRows(RowCache):
    """A `RowCache` whose copies lie in memory that the workers of a host share; one of them, the syncer, syncs.

    Every worker looks rows up in the copies, pulls what is not among them, and steps them: there each step counts at
    once, as in a `SharedTable`. Every N steps the syncer sends what all workers of the host have changed, and takes
    back what other hosts have.

    Staleness: between the workers of the host none: a step reads every step that another worker has finished, and of
    one under way some rows before and some after it. No update is lost: workers step rows one after the other, under a
    lock. Behind other hosts a row is as stale as in a `RowCache`. Without other hosts a row that is here is never
    checked; and where the service had no rows at the beginning, none is asked for, until rows are dropped here.

    Threads: as `RowCache`, in each worker. Slots are valid until a `flush`, for which all workers of the host wait.

    Caveat: no strict syncs, since a step reads what the steps beside it have made of a row.

    Args:
      memory: `SharedMemory` of this table, whose owner makes its HostRows first; `PrivateMemory` of a worker alone.
      is_alone: whether this worker is the only one of the host; then slots are valid until a `begin_window`.
      is_syncer: whether this worker syncs: one on each host does.
      has_others: whether there are other hosts.
      others: see `RowCache`.
    """

    def __init__(self, *others, memory, is_syncer, has_others, is_alone=False, **settings):
        super().__init__(*others, memory=memory, **settings)
        self.is_synced_here, self._has_others, self._is_alone = is_syncer, has_others, is_alone

    def begin(self):
        if self.is_synced_here and not self._has_others:
            self._numbers[_HAS_ALL] = self._store.stats()["tables"][self.config.name]["rows"] == 0

    def locked(self):
        """Holds nothing: rows do not move, and a read beside a step sees a row as it is then."""
        return contextlib.nullcontext()

    def measured(self, latency):
        """Records a lookup that needs no request, so that lookups are seen where the service is asked for nothing."""
        is_here = latency is self.lookup_latency and not self._asks
        return latency.measure() if is_here else contextlib.nullcontext()

    def begin_window(self):
        if self.is_synced_here:
            with self._lock.alone():
                if self._is_alone and not self._window % KEPT_WINDOWS:
                    self._tidy()
                self._window += 1

    def sync_window(self, codec=None):
        if self.is_synced_here:
            super().sync_window(codec)

    def flush(self):
        """As `RowCache`; all workers of the host wait for it, so slots may change."""
        if self.is_synced_here:
            with self._lock.alone():
                self._tidy()
            super().flush()

    def pull_ahead(self, keys):
        """As `RowCache`; nothing where the service is asked for no rows: a lookup makes those that are new itself."""
        return super().pull_ahead(keys) if self._asks else self._window

    def _tidy(self):
        """Drops rows, which the service then is asked for. Under the lock."""
        count = len(self)
        self._copies.tidy(self._window)
        if len(self) < count:
            self._numbers[_HAS_ALL] = 0

    @property
    def _asks(self):
        return not self._numbers[_HAS_ALL]

    def _find(self, keys, since, create):
        if self._asks:
            return super()._find(keys, since, create)
        with self._lock.shared():
            slots = self._copies.table.find(keys)
        self.hits += np.count_nonzero(keys)
        if create and np.any((slots < 0) & (keys != 0)):
            with self._lock.alone():
                slots = self._copies.make(keys, self._window)
        return slots

    def _oldest(self, since):
        return super()._oldest(since) if self._has_others else 0
