"""The store in this process."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ctr_trainer.embedding.memory.growable_array import LockTimes
from ctr_trainer.embedding.snapshot.snapshot import FileEntry
from ctr_trainer.embedding.store.locked_tables import LockedTables, MakeTable, tracked_table
from ctr_trainer.embedding.store.row_codec import PLAIN, RowCodec
from ctr_trainer.embedding.store.store import MakeCopies, Store
from ctr_trainer.embedding.store.store_snapshots import StoreSnapshots
from ctr_trainer.embedding.store.versions import ChangedRows, merge_changes, newer
from ctr_trainer.embedding.store.worker_rows import StepHistory, WorkerRows
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.path import AnyPath
from ctr_trainer.system.messages.errors import UserError, diverged

# Seconds between two holds of a table's lock. A thread that asks again at once would overtake the requests that wait.
_BETWEEN_SECONDS = 1e-4
_BLOCK_BYTES = 16 << 20  # Of rows that are copied under one hold of their table's lock.
_CATCH_UP_BLOCK = 8192  # Rows that are caught up under one hold of their lock.


def check_versions(table: str, keys: np.ndarray, versions: np.ndarray) -> None:
    """Raises UserError if the versions are not one uint32 per key."""
    if versions.dtype != np.uint32 or versions.shape != keys.shape:
        raise UserError(f"table {table}: versions {versions.dtype}{list(versions.shape)}, expected uint32[{len(keys)}]")


def check_rows(table: Table, keys: np.ndarray, rows: np.ndarray) -> None:
    """Raises UserError if rows, or changes, are not one finite row of the table's width per key, or if a key is 0."""
    name, width = table.config.name, table.config.width
    if rows.dtype != np.float32 or rows.shape != (len(keys), width):
        raise UserError(f"table {name}: rows {rows.dtype}{list(rows.shape)}, expected float32{[len(keys), width]}")
    if len(keys) and not keys.all():
        raise UserError(f"table {name}: a push to the key 0, which stands for no value and has no row; leave it out")
    bad = row_kernels.first_not_finite(rows)
    if bad >= 0:
        raise diverged(f"table {name}: the change of key {keys[bad]} is not finite")


def check_unlimited(table: Table) -> None:
    """Raises UserError if the table's limits say which keys have rows."""
    if table.config.has_limits:
        raise UserError(f"table {table.config.name}: a put to a table with limits; push changes")


class TableRows(WorkerRows):
    """A `Table`'s own rows: a step changes what every other user of the table reads, so there is nothing to sync.

    For one thread at a time; a `SharedTable` locks its rows itself.
    """

    def __init__(self, table: Table) -> None:
        self.config = table.config
        self._table = table
        self._history: StepHistory | None = None

    @property
    def rows(self) -> np.ndarray:
        return self._table.rows

    @property
    def lock_times(self) -> LockTimes:
        return self._table.lock_times

    def find(self, keys: np.ndarray) -> np.ndarray:
        return self._table.find(keys)

    def find_or_create(self, keys: np.ndarray, since: int | None = None) -> np.ndarray:
        slots = self._table.find_or_create(keys)
        if self._history:
            self._catch_up(slots, self._history.steps)
        return slots

    def apply_gradients(self, slots: np.ndarray, gradients: Sequence[np.ndarray], learning_rate: float) -> None:
        if self._history:
            self._history.begin_step(learning_rate)
            self._catch_up(slots, self._history.steps + 1)
        self._table.apply_gradients(slots, gradients, learning_rate)
        if self._history:
            self._history.end_step()

    def follow_steps(self, history: StepHistory) -> None:
        self._history = history

    def flush(self) -> None:
        if self._history:
            slots = np.flatnonzero(self._table.keys)
            for first in range(0, len(slots), _CATCH_UP_BLOCK):
                self._catch_up(slots[first : first + _CATCH_UP_BLOCK], self._history.steps)

    def _catch_up(self, slots: np.ndarray, taken: int) -> None:
        """Makes the steps that the rows at `slots` missed; `taken` is how many they count as having taken then."""
        assert self._history is not None
        with self._table.locked():
            self._table.before_change(slots)
            self._history.catch_up(self.config, self._table.rows, slots, taken)

    def found_again(self, keys: np.ndarray, slots: np.ndarray) -> np.ndarray:
        # New rows of a later micro-batch may have evicted rows of an earlier micro-batch.
        return self._table.find(keys)


class LocalStore(Store):
    """The Store in this process. Safe to use from several threads: each table has a lock.

    Attributes:
      snapshots: `StoreSnapshots`, for a service, whose files are a part of all shards' files.
    """

    def __init__(self, make_table: MakeTable = tracked_table) -> None:
        self._tables = LockedTables(make_table)
        self.snapshots = StoreSnapshots(self._tables)
        self._sequences: dict[tuple[str, str], int] = {}

    @property
    def tables(self) -> dict[str, Table]:
        """The tables by name."""
        return self._tables.tables

    def take_place(self, shard: int, shards: int) -> None:
        """Says that this store has the rows of `shard` among `shards` stores; without it, it has all rows."""
        self._tables.place = shard, shards

    def create_table(self, config: TableConfig) -> None:
        self._tables.create(config)

    def config(self, name: str) -> TableConfig:
        return self._tables.config(name)

    def worker_rows(self, config: TableConfig, copies: MakeCopies) -> WorkerRows:
        return TableRows(self.tables[config.name])

    def pull(self, table: str, keys: np.ndarray, missing: str = "initial") -> np.ndarray:
        with self._tables.locked(table) as target:
            return target.read(keys, missing)

    def pull_newer(self, table: str, keys: np.ndarray, versions: np.ndarray, codec: RowCodec = PLAIN) -> ChangedRows:
        check_versions(table, keys, versions)
        with self._tables.locked(table) as target:
            answer = newer(target, self._tables.versions(table), keys, versions)
        return answer.encoded(codec)

    def push(self, table: str, keys: np.ndarray, deltas: np.ndarray, worker: str, sequence: int) -> None:
        deltas = np.require(deltas, requirements=("C",))
        with self._tables.locked(table) as target:
            check_rows(target, keys, deltas)
            if self._is_new(table, worker, sequence):
                self._tables.mark(target, target.add(keys, deltas))
                self._sequences[table, worker] = sequence

    def put(self, table: str, keys: np.ndarray, rows: np.ndarray, worker: str, sequence: int) -> None:
        rows = np.require(rows, requirements=("C",))
        with self._tables.locked(table) as target:
            check_unlimited(target)
            check_rows(target, keys, rows)
            if self._is_new(table, worker, sequence):
                self._tables.mark(target, target.find_or_insert(keys, rows))
                self._sequences[table, worker] = sequence

    def sync(
        self,
        table: str,
        keys: np.ndarray,
        deltas: np.ndarray,
        worker: str,
        sequence: int,
        versions: np.ndarray | None = None,
        codec: RowCodec = PLAIN,
    ) -> ChangedRows:
        deltas = codec.decode(deltas)
        if versions is not None:
            check_versions(table, keys, versions)
        with self._tables.locked(table) as target:
            check_rows(target, keys, deltas)
            if self._is_new(table, worker, sequence):
                answer = merge_changes(target, self._tables.versions(table), keys, deltas, versions)
                self._sequences[table, worker] = sequence
            else:
                answer = newer(target, self._tables.versions(table), keys, None)
        return answer.encoded(codec)

    def advance(self, step: int) -> None:
        for name in self._tables:
            with self._tables.locked(name) as table:
                table.advance(step)
                stop = table.expire()
            while stop is not None:
                time.sleep(_BETWEEN_SECONDS)
                with self._tables.locked(name) as table:
                    stop = table.expire(stop)

    def begin_save(self, path: AnyPath, step: int, since: str | None = None) -> Callable[[], list[FileEntry]]:
        *_, files = self.snapshots.saving(path, step, since)
        return lambda: files

    def publish(self, path: AnyPath, epoch: int, dtype: str, after: int | None = None) -> list[FileEntry]:
        return self.snapshots.publish(path, epoch, dtype, after)

    def restore(self, path: AnyPath, files: Sequence[FileEntry]) -> None:
        self.snapshots.restore(path, files)

    def clear(self) -> None:
        self.snapshots.clear()

    def stats(self) -> dict[str, Any]:
        return self._tables.stats()

    def read_blocks(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields copies (keys, rows) of a table's blocks. A row that comes or goes meanwhile may be missing."""
        first, step = 0, max(_BLOCK_BYTES // (self.config(name).width * 4 + 8), 1)
        while first < len(self.tables[name].keys):
            with self._tables.locked(name) as table:
                keys = table.keys[first : first + step]
                rows = table.rows[first : first + len(keys)]
                there = keys != 0
                keys, rows = keys[there], rows[there]
            yield keys, rows
            first += step

    def _is_new(self, table: str, worker: str, sequence: int) -> bool:
        return sequence > self._sequences.get((table, worker), -1)
