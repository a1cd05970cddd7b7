"""The copies of a table's rows that a group of workers trains and syncs with a store."""

import dataclasses
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np

from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.versions import ChangedRows
from ctr_trainer.embedding.store.worker_rows import WorkerRows, take_weights
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.copied_rows import KEPT_WINDOWS, CopiedRows, KeptMessage
from ctr_trainer.embedding.worker.merging import Shares
from ctr_trainer.system.measuring.latency import Latency

# The most rows of a request, which bounds the memory of the service. Requests of wide rows have fewer rows.
_REQUEST_ROWS = 1 << 16
# The number of rows that are processed at once under the lock, about 1 ms of work, so that no thread waits for long.
_LOCKED_ROWS = 1 << 13
# A flush drops no rows if the copies take less than this fraction of the machine's memory, because pulling rows again
# delays steps.
_MUCH = 0.1
# The indices of the group's numbers: the window, and 1 if all rows of the store are here.
_WINDOW, _HAS_ALL = range(2)


@dataclasses.dataclass(frozen=True)
class Group:
    """The workers that train one copy of the rows: the workers of a host, or one worker alone.

    Attributes:
      groups: the number of groups of the job.
      is_syncer: whether this worker syncs the rows for its group; exactly one worker per group does.
      is_alone: whether each group of the job is one worker.
    """

    groups: int = 1
    is_syncer: bool = True
    is_alone: bool = True


class RowCopies(WorkerRows):
    """A group's copies of a table's rows, updated at each step and merged with other groups' changes at each sync.

    Each worker of the group looks up rows in the copies, pulls missing rows, and updates the copies. Every N steps one
    worker, the syncer, sends the changes of all workers of the group, and receives the rows that other groups changed.
    Steps made during a sync are kept, and the next sync sends them. With several groups, a sync sends a share of each
    change, see `merging`. If there is only one group, it sends the changed rows themselves, which takes half the memory
    and half the time, unless the table has limits, see `CopiedRows`.

    A window is the time from the start of one sync to the start of the next. With several groups, a lookup checks each
    row that was neither updated nor checked in this window: it sends the version, and the store returns the row if its
    version differs. With one group, a row that is here is never checked. If the store had no rows at the beginning
    either, no rows are requested until rows are dropped here.

    Staleness: none within the group. A lookup sees every step that another worker of the group has finished, and may
    see some rows before and some after a step that is running. No update is lost, because workers update rows one after
    the other, under a lock. With respect to other groups, after a sync has ended, a lookup returns rows that were up to
    date in the store at the start of this window or later. Within a window, a group does not see others' changes.

    Changes and rows are sent in the table's form, see `row_form`.

    Threads: in each worker, one thread trains (`find_or_create`, `apply_gradients`, `begin_window`), another may call
    `pull_ahead`, and a third may call `sync_window`. They share the lock of the rows, which is never held during a
    request. Slots are valid from a lookup until a `flush`, for which all workers of the group wait, and in a group of
    one until `begin_window`, which only the training thread may call, between two calls of `sync_window`.

    Attributes:
      is_synced_here: whether this worker syncs the rows.
      pulled_ahead: distinct keys whose rows were requested ahead of their lookup.
      rows_pulled: rows received from the store, because others had changed them or they were missing here.
      lookup_latency: OpsEmbeddingLookup, the latency of each request for rows, from the request to the answer.
      push_latency: OpsPushGrad, the latency of each request that sends changes.
    """

    def __init__(
        self,
        store: Store,
        config: TableConfig,
        worker: str,
        group: Group = Group(),  # noqa: B008, it is frozen
        *,
        memory: TableMemory | None = None,
        lookup_latency: Latency | None = None,
        push_latency: Latency | None = None,
    ) -> None:
        """Opens the copies, and creates the table in the store if it does not exist.

        Args:
          worker: name of this worker, to which each start adds a random suffix.
          memory: `SharedMemory` of this table for the workers of a host, whose owner must make its copies first; None
            for a worker's own memory.
          lookup_latency, push_latency: recorders shared with other tables; by default these copies have their own.
        """
        memory = memory or TableMemory()
        self.config, self._group, self._form = config, group, config.form
        self._has_others, self.is_synced_here = group.groups > 1, group.is_syncer
        sends_rows = not self._has_others and not config.has_limits
        self._sync_part = self._put_part if sends_rows else self._merge_part
        self._copies = CopiedRows(config, None if sends_rows else Shares(config, group.groups), memory)
        self._lock, self._numbers = self._copies.table.lock, memory.counts("copies", 2)
        self._numbers[_WINDOW] = max(self._numbers[_WINDOW], 1)
        self.hits = self.misses = self.pulled_ahead = self.rows_pulled = self.bytes_synced = 0
        self.lookup_latency = lookup_latency or Latency("OpsEmbeddingLookup")
        self.push_latency = push_latency or Latency("OpsPushGrad")
        self._store, self._worker, self._sequence = store, f"{worker}-{uuid.uuid4().hex}", 0
        self._message, self._request_rows = KeptMessage(), min(_REQUEST_ROWS, wire.rows_a_page(config.width))
        store.create_table(config)

    def __len__(self) -> int:
        return len(self._copies)

    def take(self, slots: np.ndarray) -> np.ndarray:
        return take_weights(self._copies.table, slots)

    def begin(self) -> None:
        if self.is_synced_here and not self._has_others:
            self._numbers[_HAS_ALL] = self._store.stats()["tables"][self.config.name]["rows"] == 0

    @property
    def asks(self) -> bool:
        return not self._numbers[_HAS_ALL]

    def find(self, keys: np.ndarray) -> np.ndarray:
        raise RuntimeError(f"table {self.config.name} is trained here: each key gets a row")

    def find_or_create(self, keys: np.ndarray, since: int | None = None) -> np.ndarray:
        """Returns int64[U] slots; pulls rows not checked in this window, or since `since`, see `pull_ahead`."""
        with self._lock.shared():
            window = self._window
            oldest = (window if since is None else since) if self._has_others else 0
            slots, wanted, known = self._copies.stale(keys, oldest)
        asked = len(wanted) if self.asks else 0
        self.hits += int(np.count_nonzero(keys)) - asked
        self.misses += asked
        if asked:
            self._pull(wanted, known, window)
            with self._lock.shared():
                slots = self._copies.table.find(keys)
        elif len(wanted):
            missing = np.flatnonzero((slots < 0) & (keys != 0))
            with self._lock.alone():
                slots[missing] = self._copies.make(keys[missing], window)
        return slots

    def pull_ahead(self, keys: np.ndarray) -> int:
        """Pulls, outside the training thread, rows for a later `find_or_create`; returns `since` for it.

        Staleness: the lookup's staleness grows by the number of steps between this call and the lookup.
        """
        window = self._window
        if self.asks:
            with self._lock.shared():
                window = self._window
                _, wanted, known = self._copies.stale(keys, window if self._has_others else 0)
                self.pulled_ahead += len(wanted)
            if len(wanted):
                self._pull(wanted, known, window)
        return window

    def apply_gradients(
        self, keys: np.ndarray, slots: np.ndarray, gradients: Sequence[np.ndarray], learning_rate: float
    ) -> None:
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
        """Begins a window; call `sync_window` before the next call. In a group of one, some calls renumber slots."""
        if self.is_synced_here:
            with self._lock.alone():
                if self._group.is_alone and not self._window % KEPT_WINDOWS:
                    self._tidy()
                self._numbers[_WINDOW] += 1

    def sync_window(self) -> None:
        """Sends the changes of this group and receives the rows that others changed."""
        if self.is_synced_here:
            with self._lock.alone():
                self._copies.begin_window()
            slots = self._copies.stepped(self._message)
            for first in range(0, len(slots), self._request_rows):
                self._sync_part(slots[first : first + self._request_rows])

    def flush(self) -> None:
        """Syncs all changes. Slots may change, so all workers of the group must wait for it."""
        if self.is_synced_here:
            if self._copies.nbytes > _MUCH * memory_total():
                with self._lock.alone():
                    self._tidy()
            self.sync()

    def refresh(self) -> None:
        """Makes the second half of a strict sync, after which lookups return rows with the pushes of all workers."""
        with self._lock.alone():
            # The rows of the push were checked before the pushes of the other groups, so each needs another check. The
            # next lookups are likely to need the rows of the last steps, so these are checked now.
            keys, known = self._copies.checked_in(self._window)
            self._numbers[_WINDOW] += 1
            window = self._window
        for first in range(0, len(keys), self._request_rows):
            part = slice(first, first + self._request_rows)
            self._pull(keys[part], known[part], window)

    def forget(self) -> None:
        """Makes the second half of a strict sync: drops all rows, as a training that resumes begins without any."""
        with self._lock.alone():
            self._copies.table.clear()
            self._numbers[_WINDOW] = 1

    @property
    def _window(self) -> int:
        return int(self._numbers[_WINDOW])

    def _tidy(self) -> None:
        """Drops rows; if any row is dropped, later lookups request rows. Call it under the lock."""
        if self._copies.tidy(self._window):
            self._numbers[_HAS_ALL] = 0

    def _pull(self, keys: np.ndarray, known: np.ndarray, window: int) -> None:
        with self.lookup_latency.measure():
            newer = self._store.pull(self.config.name, keys, known)
        self._count(newer, keys.nbytes + known.nbytes)
        rows = self._form.decode(newer.rows)
        with self._lock.alone():
            self._copies.accept(keys, known, newer, rows, window)

    def _put_part(self, slots: np.ndarray) -> None:
        """Makes one request of a sync, which sends the rows at `slots`."""
        keys = self._message.column("keys", np.int64, len(slots))
        rows = self._message.column("rows", np.float32, len(slots), self._form.lanes)
        # The lock is shared: other workers' lookups continue; their steps wait.
        for block in _blocks(len(slots), self._lock.shared()):
            self._copies.take_rows(slots[block], self._window, keys[block], rows[block])
        self._sequence += 1
        with self.push_latency.measure():
            self._store.put(self.config.name, keys, rows, self._worker, self._sequence)
        self.bytes_synced += keys.nbytes + rows.nbytes

    def _merge_part(self, slots: np.ndarray) -> None:
        """Makes one request of a sync, which sends the changes of the rows at `slots` and takes the answer."""
        keys = self._message.column("keys", np.int64, len(slots))
        known = self._message.column("versions", np.uint32, len(slots))
        deltas = self._message.column("deltas", np.float32, len(slots), self._form.lanes)
        for block in _blocks(len(slots), self._lock.alone()):
            keys[block], known[block], deltas[block] = self._copies.take(slots[block])
        self._sequence += 1
        with self.push_latency.measure():
            newer = self._store.sync(self.config.name, keys, deltas, self._worker, self._sequence, known)
        self._count(newer, keys.nbytes + known.nbytes + deltas.nbytes)
        rows = self._form.decode(newer.rows)
        for block in _blocks(len(slots), self._lock.alone()):
            first, last = np.searchsorted(newer.positions, (block.start, block.stop))
            positions = newer.positions[first:last] - block.start
            self._copies.land(slots[block], newer.versions[block], positions, rows[first:last], self._window)

    def _count(self, newer: ChangedRows, bytes_up: int) -> None:
        self.rows_pulled += len(newer.rows)
        self.bytes_synced += bytes_up + newer.rows.nbytes + 8 * len(newer.rows)


def _blocks(count: int, lock: AbstractContextManager[None]) -> Iterator[slice]:
    """Yields slices of `count` rows, each while the lock is held."""
    for first in range(0, count, _LOCKED_ROWS):
        with lock:
            yield slice(first, min(first + _LOCKED_ROWS, count))
