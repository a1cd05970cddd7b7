"""The rows of one table that all workers of a host train together, and that the host syncs with the service."""

import contextlib
from contextlib import AbstractContextManager

import numpy as np

from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.store.row_codec import PLAIN, RowCodec
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.kept_rows import KEPT_WINDOWS, KeptRows
from ctr_trainer.embedding.worker.merging import Shares
from ctr_trainer.embedding.worker.row_cache import RowCache
from ctr_trainer.system.measuring.latency import Latency

# A copy that takes less than this share of the machine's memory drops nothing at a flush: to pull rows again costs
# steps.
_MUCH = 0.1
_HAS_ALL = 1  # Which of the cache's numbers says whether all rows that the service has are here.


class HostRows(RowCache):
    """A `RowCache` whose copies lie in memory that the workers of a host share; one worker, the syncer, syncs them.

    Each worker looks rows up in the copies, pulls the rows that are missing, and steps the copies. All workers of the
    host see a step at once, as in a `SharedTable`. Every N steps the syncer sends the changes of all workers of the
    host, and takes the changes of other hosts.

    If no other host changes the rows (there are no others, and the table has no limits), a sync sends each changed
    row as it is, and the service puts it in place of its own: that takes half the memory and half the time of a change,
    see `KeptRows`. If the codec rounds, changes are sent all the same: what is rounded away from them is not lost.

    Staleness: none between the workers of the host. A step reads the rows with every step that another worker has
    finished; while a step runs, it reads some rows before that step and some after it. No update is lost:
    workers step rows one after the other, under a lock. Behind other hosts a row is as stale as in a `RowCache`. If
    there are no other hosts, a row that is here is never checked. If the service had no rows at the
    beginning either, none is asked for until rows are dropped here.

    Threads: as in `RowCache`, in each worker. Slots are valid until a `flush`, for which all workers of the host wait.

    Caveat: there are no strict syncs, since a step reads rows that other workers step meanwhile.

    Args:
      store, config, worker, lookup_latency, push_latency, codec, shares: see `RowCache`.
      memory: `SharedMemory` of this table, whose owner makes its HostRows first; or a lone worker's own memory.
      is_syncer: whether this worker syncs; one worker on each host does.
      has_others: whether there are other hosts.
      is_alone: whether this worker is the only one of the host; if so, slots are valid until a `begin_window`.
    """

    def __init__(
        self,
        store: Store,
        config: TableConfig,
        worker: str,
        lookup_latency: Latency | None = None,
        push_latency: Latency | None = None,
        codec: RowCodec = PLAIN,
        shares: Shares | None = None,
        *,
        memory: TableMemory,
        is_syncer: bool,
        has_others: bool,
        is_alone: bool = False,
    ) -> None:
        self.is_synced_here, self._has_others, self._is_alone = is_syncer, has_others, is_alone
        super().__init__(store, config, worker, lookup_latency, push_latency, codec, shares, memory)

    def begin(self) -> None:
        if self.is_synced_here and not self._has_others:
            self._numbers[_HAS_ALL] = self._store.stats()["tables"][self.config.name]["rows"] == 0

    def locked(self) -> AbstractContextManager[None]:
        """Holds no lock: rows do not move, and a read during a step sees each row as it is at that moment."""
        return contextlib.nullcontext()

    def begin_window(self) -> None:
        if self.is_synced_here:
            with self._lock.alone():
                if self._is_alone and not self._window % KEPT_WINDOWS:
                    self._tidy()
                self._window += 1

    def sync_window(self, codec: RowCodec | None = None) -> None:
        if self.is_synced_here:
            super().sync_window(codec)

    def flush(self) -> None:
        """Does what `RowCache.flush` does. Slots may change: all workers of the host wait for the flush."""
        if self.is_synced_here:
            if self._copies.nbytes > _MUCH * memory_total():
                with self._lock.alone():
                    self._tidy()
            super().flush()

    def pull_ahead(self, keys: np.ndarray) -> int:
        return super().pull_ahead(keys) if self.asks else self._window

    @property
    def _is_only(self) -> bool:
        """Whether no other host changes the rows, and nothing is rounded on the way."""
        return not self._has_others and self._codec.is_exact and not self.config.has_limits

    def _keep(self, shares: Shares | None, memory: TableMemory) -> KeptRows:
        return KeptRows(self.config, memory) if self._is_only else super()._keep(shares, memory)

    def _sync_part(self, slots: np.ndarray, codec: RowCodec) -> None:
        if not self._is_only:
            super()._sync_part(slots, codec)
            return
        self._sequence += 1
        keys = self._message.column("keys", np.int64, len(slots))
        rows = self._message.column("rows", np.float32, len(slots), self.config.width)
        for block in self._copies.blocks(len(slots)):
            with self._lock.shared():  # Other workers may look rows up meanwhile; a step waits.
                self._copies.take_rows(slots[block], self._window, keys[block], rows[block])
        with self.push_latency.measure():
            self._store.put(self.config.name, keys, rows, self._worker, self._sequence)
        self.bytes_synced += keys.nbytes + rows.nbytes

    def _tidy(self) -> None:
        """Drops rows; if any is dropped, the service is asked for rows from then on. Call it under the lock."""
        count = len(self)
        self._copies.tidy(self._window)
        if len(self) < count:
            self._numbers[_HAS_ALL] = 0

    @property
    def asks(self) -> bool:
        return not self._numbers[_HAS_ALL]

    def _find(self, keys: np.ndarray, since: int | None, create: bool) -> np.ndarray:
        if self.asks:
            return super()._find(keys, since, create)
        with self._lock.shared():
            slots, unknown = self._copies.table.find_and_count(keys)
        self.hits += int(np.count_nonzero(keys))
        if create and unknown:
            missing = np.flatnonzero((slots < 0) & (keys != 0))
            with self._lock.alone():
                slots[missing] = self._copies.make(keys[missing], self._window)
        return slots

    def _oldest(self, since: int | None) -> int:
        return super()._oldest(since) if self._has_others else 0
