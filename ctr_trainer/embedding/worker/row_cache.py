"""A worker's copies of the rows that it trains."""

import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager

import numpy as np

from ctr_trainer.embedding.memory.growable_array import LockTimes, TableMemory
from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.store.row_codec import PLAIN, RowCodec
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.versions import ChangedRows
from ctr_trainer.embedding.store.worker_rows import RowTotals, WorkerRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.cached_rows import CachedRows
from ctr_trainer.embedding.worker.kept_rows import KEPT_WINDOWS, KeptMessage, KeptRows
from ctr_trainer.embedding.worker.merging import Shares
from ctr_trainer.system.measuring.latency import Latency

# The most rows of a request, which bounds the memory of the service. Requests of wide rows have fewer rows.
_REQUEST_ROWS = 1 << 16
_WINDOW = 0  # The index of the window in the cache's numbers.


class RowCache(WorkerRows):
    """A worker's copies of a table's rows, updated at each step and merged with other workers' changes at each sync.

    The cache keeps each row, which steps change, and its base: the last received row of the service plus the changes
    that this worker has sent since. A sync sends `row - base` and the version of each row that was updated since the
    previous sync. The service adds the changes of all workers and returns only rows that others changed. Steps made
    during a sync are added to the returned rows, and the next sync sends them.

    A window is the time from the start of one sync to the start of the next. A lookup checks each row that was neither
    updated nor checked in this window: it sends the version, and the service returns the row if its version differs.

    Staleness: after a sync has ended, a lookup returns rows that were up to date in the service at the start of this
    window or later. During a sync, the rows that it sends still have the values that the previous sync returned. Within
    a window a worker does not see the changes of other workers.

    The `codec` encodes changes and rows. Its rounding error of a change stays in `row - base` and is sent with the next
    change of the row, before the row leaves the cache, or at a `flush`. With `shares`, a sync sends a share of each
    change, see `merging`, and drops the rest.

    Threads: one thread trains (`find_or_create`, `apply_gradients`, `begin_window`), another may call `pull_ahead`, and
    a third may call `sync_window`. They share a lock, which is held during each use of the cache's memory and never
    during a request. Slots are valid from a lookup until `begin_window`, which only the training thread may call,
    between two calls of `sync_window`.

    Attributes:
      hits, misses, bytes_synced: see `RowTotals`.
      pulled_ahead: distinct keys whose rows were requested ahead of their lookup.
      rows_pulled: rows received from the service, because others had changed them or they were missing here.
      lookup_latency: OpsEmbeddingLookup, the latency of each request for rows, from the request to the answer.
      push_latency: OpsPushGrad, the latency of each request that sends changes.
    """

    are_copies = is_synced_here = True

    def __init__(
        self,
        store: Store,
        config: TableConfig,
        worker: str,
        lookup_latency: Latency | None = None,
        push_latency: Latency | None = None,
        codec: RowCodec = PLAIN,
        shares: Shares | None = None,
        memory: TableMemory = TableMemory(),  # noqa: B008, it holds nothing
    ) -> None:
        """Makes an empty cache, and creates the table in the store if it does not exist.

        Args:
          worker: name of this worker. A random suffix is added at each start, so that the store accepts its pushes.
          lookup_latency, push_latency: recorders shared with other caches; by default this cache has its own.
          codec: encodes changes and rows.
          shares: see `merging.Shares`; None to send whole changes.
          memory: the memory of the copies; `SharedMemory` must be for this table only.
        """
        self.config = config
        self._lock = memory.lock("cache")
        self._numbers = memory.counts("cache", 2)
        if not self._numbers[_WINDOW]:
            self._numbers[_WINDOW] = 1
        self.hits = self.misses = self.pulled_ahead = self.rows_pulled = self.bytes_synced = 0
        self.lookup_latency = lookup_latency or Latency("OpsEmbeddingLookup")
        self.push_latency = push_latency or Latency("OpsPushGrad")
        self._store = store
        self._worker = f"{worker}-{uuid.uuid4().hex}"
        self._codec = codec
        self._sequence, self._message = 0, KeptMessage()
        self._request_rows = min(_REQUEST_ROWS, wire.rows_a_page(config.width))
        self._copies = self._keep(shares, memory)
        store.create_table(config)

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def rows(self) -> np.ndarray:
        return self._copies.table.rows

    def locked(self) -> AbstractContextManager[None]:
        return self._lock.alone()

    def totals(self) -> RowTotals:
        return RowTotals(self.hits, self.misses, self.bytes_synced)

    @property
    def lock_times(self) -> LockTimes:
        return self._lock.times

    def find_or_create(self, keys: np.ndarray, since: int | None = None) -> np.ndarray:
        """Returns int64[U] slots; pulls each row that is missing or not up to date.

        `since` is the result of `pull_ahead` for these keys: rows checked in that window or later count as up to date.
        If it is None, only rows checked in this window do.
        """
        return self._find(keys, since, create=True)

    def find(self, keys: np.ndarray) -> np.ndarray:
        """Returns int64[U] slots, for evaluation; -1 for a key that has a row neither here nor in the store."""
        return self._find(keys, None, create=False)

    def pull_ahead(self, keys: np.ndarray) -> int:
        """Pulls the rows that a later `find_or_create` of these keys would pull; call it outside the training thread.

        Staleness: the rows are up to date for the window of this call, so the staleness of the lookup grows by the
        number of steps between this call and the lookup. Returns `since` for that lookup.
        """
        with self._lock.shared():
            since = self._oldest(None)
            _, wanted, known = self._copies.stale(keys, since)
            self.pulled_ahead += len(wanted) * self.asks
        if len(wanted):
            self._pull(wanted, known, since, create=True)
        return since

    def apply_gradients(self, slots: np.ndarray, gradients: Sequence[np.ndarray], learning_rate: float) -> None:
        with self._lock.alone():
            self._copies.table.apply_gradients(slots, gradients, learning_rate)
            self._copies.mark_stepped(slots)

    def l2_shares(self, slots: np.ndarray) -> np.ndarray | None:
        with self._lock.shared():
            return self._copies.l2_shares(slots)

    def sync(self) -> None:
        self.begin_window()
        self.sync_window()

    def begin_window(self) -> None:
        """Begins a window; call `sync_window` before the next call. Every eighth call may renumber slots."""
        with self._lock.alone():
            if not self._window % KEPT_WINDOWS:
                self._copies.tidy(self._window)
            self._window += 1

    def sync_window(self, codec: RowCodec | None = None) -> None:
        """Sends the changes of this worker and receives the rows that others changed; None for the cache's codec."""
        slots = self._copies.end_window(self._lock, self._message)
        for first in range(0, len(slots), self._request_rows):
            part = slots[first : first + self._request_rows]
            self._sync_part(part, codec or self._codec)

    def flush(self) -> None:
        self.begin_window()
        if not self._codec.is_exact:
            with self._lock.alone():
                self._copies.mark_unsent()
        self.sync_window(PLAIN)

    def refresh(self) -> None:
        """Makes the second half of a strict sync, after which lookups return rows with the pushes of all workers."""
        with self._lock.alone():
            # The rows of the push were checked before the pushes of the other workers, so each needs another check. The
            # next lookups are likely to need the rows of the last steps, so these are checked now.
            keys, known = self._cached_rows().checked_in(self._window)
            self._window += 1
            window = self._window
        for first in range(0, len(keys), self._request_rows):
            part = slice(first, first + self._request_rows)
            self._pull(keys[part], known[part], window, create=True, codec=PLAIN)

    def forget(self) -> None:
        """Makes the second half of a strict sync: drops all rows, as a training that resumes begins without any."""
        with self._lock.alone():
            self._copies.table.clear()
            self._window = 1

    def _keep(self, shares: Shares | None, memory: TableMemory) -> KeptRows:
        return CachedRows(self.config, shares, memory)

    def _cached_rows(self) -> CachedRows:
        assert isinstance(self._copies, CachedRows)
        return self._copies

    @property
    def asks(self) -> bool:
        return True

    @property
    def _window(self) -> int:
        return int(self._numbers[_WINDOW])

    @_window.setter
    def _window(self, window: int) -> None:
        self._numbers[_WINDOW] = window

    def _oldest(self, since: int | None) -> int:
        """Returns the first window whose checks count; `since` is the result of `pull_ahead`, None for this window."""
        return self._window if since is None else since

    def _find(self, keys: np.ndarray, since: int | None, create: bool) -> np.ndarray:
        with self._lock.shared():
            window = self._window
            slots, wanted, known = self._copies.stale(keys, self._oldest(since))
            asked = len(wanted) * self.asks
            self.hits += int(np.count_nonzero(keys)) - asked
            self.misses += asked
        if not len(wanted):
            return slots
        self._pull(wanted, known, window, create)
        with self._lock.shared():
            return self._copies.table.find(keys)

    def _pull(
        self, keys: np.ndarray, known: np.ndarray, window: int, create: bool, codec: RowCodec | None = None
    ) -> None:
        codec = codec or self._codec
        with self.lookup_latency.measure():
            newer = self._store.pull_newer(self.config.name, keys, known, codec)
        self._count(newer, keys.nbytes + known.nbytes)
        rows = codec.decode(newer.rows)
        with self._lock.alone():
            self._copies.accept(keys, known, newer, rows, window, create)

    def _sync_part(self, slots: np.ndarray, codec: RowCodec) -> None:
        """Makes one request of a sync for the rows at `slots`."""
        self._sequence += 1
        keys = self._message.column("keys", np.int64, len(slots))
        known = self._message.column("versions", np.uint32, len(slots))
        dtype, columns = codec.schema(self.config.width)
        deltas = self._message.column("deltas", dtype, len(slots), columns)
        copies = self._cached_rows()
        blocks = copies.blocks(len(slots))
        for block in blocks:
            with self._lock.alone():
                keys[block], known[block], deltas[block] = copies.take(slots[block], codec)
        with self.push_latency.measure():
            newer = self._store.sync(self.config.name, keys, deltas, self._worker, self._sequence, known, codec)
        self._count(newer, keys.nbytes + known.nbytes + deltas.nbytes)
        rows = codec.decode(newer.rows)
        for block in blocks:
            first, last = np.searchsorted(newer.positions, (block.start, block.stop))
            positions = newer.positions[first:last] - block.start
            with self._lock.alone():
                copies.land(slots[block], newer.versions[block], positions, rows[first:last], self._window)

    def _count(self, newer: ChangedRows, bytes_up: int) -> None:
        self.rows_pulled += len(newer.rows)
        self.bytes_synced += bytes_up + newer.rows.nbytes + 8 * len(newer.rows)
