"""The rows of one table that all workers of a host train together and one of them syncs with the service."""

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

# A flush drops no rows if the copy takes less than this fraction of the machine's memory, because pulling rows again
# delays steps.
_MUCH = 0.1
_HAS_ALL = 1  # The index of the cache's number that is 1 if all rows of the service are here.


class HostRows(RowCache):
    """A `RowCache` whose copies lie in memory shared by the workers of a host; one worker, the syncer, syncs them.

    Each worker looks up rows in the copies, pulls missing rows, and updates the copies. All workers of the host see a
    step at once, as in a `SharedTable`. Every N steps the syncer sends the changes of all workers of the host, and
    receives the changes of other hosts.

    If no other host changes the rows (there are no other hosts, and the table has no limits), a sync sends the changed
    rows themselves, and the service replaces its rows. This takes half the memory and half the time of sending changes,
    see `KeptRows`. If the codec is not exact, changes are sent in any case, because their rounding errors are not lost.

    Staleness: none between the workers of the host. A lookup sees every step that another worker has finished. While
    another worker's step runs, a lookup may see some rows before the step and some rows after it. No update is lost,
    because workers update rows one after the other, under a lock. With respect to other hosts, a row is as stale as in
    a `RowCache`. If there are no other hosts, local rows are never checked. If also the service had no rows at the
    beginning, no rows are requested until rows are dropped here.

    Threads: as in `RowCache`, in each worker. Slots are valid until a `flush`, for which all workers of the host wait.

    Caveat: strict syncs are not possible, because a step reads rows that other workers update at the same time.

    Args:
      store, config, worker, lookup_latency, push_latency, codec, shares: see `RowCache`.
      memory: `SharedMemory` of this table, whose owner must make its HostRows first, or a single worker's own memory.
      is_syncer: whether this worker syncs the rows; exactly one worker per host does.
      has_others: whether there are other hosts.
      is_alone: whether this worker is the only one on its host; if so, slots are valid until a `begin_window`.
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
        """Holds no lock: rows do not move, and a read during a step sees the current values of each row."""
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
        """Flushes as `RowCache.flush` does. Slots may change, so all workers of the host must wait for the flush."""
        if self.is_synced_here:
            if self._copies.nbytes > _MUCH * memory_total():
                with self._lock.alone():
                    self._tidy()
            super().flush()

    def pull_ahead(self, keys: np.ndarray) -> int:
        return super().pull_ahead(keys) if self.asks else self._window

    @property
    def _is_only(self) -> bool:
        """Whether no other host changes the rows and the codec is exact."""
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
            with self._lock.shared():  # Other workers' lookups continue; their steps wait.
                self._copies.take_rows(slots[block], self._window, keys[block], rows[block])
        with self.push_latency.measure():
            self._store.put(self.config.name, keys, rows, self._worker, self._sequence)
        self.bytes_synced += keys.nbytes + rows.nbytes

    def _tidy(self) -> None:
        """Drops rows; if any row is dropped, later lookups request rows. Call it under the lock."""
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
