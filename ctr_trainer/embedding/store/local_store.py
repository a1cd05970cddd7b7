"""The store in this process."""

import contextlib
import time

import numpy as np

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store.changed_rows import merge, newer
from ctr_trainer.embedding.store.locked_tables import LockedTables
from ctr_trainer.embedding.store.request_checks import check_rows, check_unlimited, check_versions
from ctr_trainer.embedding.store.row_codec import PLAIN
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.store_snapshots import StoreSnapshots
from ctr_trainer.embedding.store.table_rows import TableRows
from ctr_trainer.embedding.table.table import Table

# Seconds between two holds of a table's lock. A thread that asks again at once would overtake the requests that wait.
_BETWEEN_SECONDS = 1e-4
_NOTHING = contextlib.nullcontext()


class LocalStore(Store):
    """The Store in this process. Safe to use from several threads: each table has a lock."""

    def __init__(self, make_table=Table):
        """`make_table`: see `LockedTables`."""
        self._tables = LockedTables(make_table)
        self._snapshots = StoreSnapshots(self._tables)
        self._sequences = {}

    @property
    def tables(self):
        """dict[str, Table], by name."""
        return self._tables.tables

    def create_table(self, config, shard=0, shards=1):
        """Makes an empty table, as `Store.create_table`; for the arguments see `LockedTables.create`."""
        self._tables.create(config, shard, shards)

    def config(self, name):
        """-> the TableConfig of a table."""
        return self._tables.config(name)

    def worker_rows(self, config, copies):
        return TableRows(self.tables[config.name])

    def pull(self, table, keys, missing="initial"):
        with self._locked(table) as target:
            return target.read(keys, missing)

    def pull_newer(self, table, keys, versions, codec=PLAIN):
        check_versions(table, keys, versions)
        with self._locked(table) as target:
            answer = newer(target, self._tables.versions(table), keys, versions)
        return answer.encoded(codec)

    def push(self, table, keys, deltas, worker, sequence):
        deltas = np.require(deltas, requirements=("C",))
        with self._locked(table) as target:
            check_rows(target, keys, deltas)
            if self._is_new(table, worker, sequence):
                self._tables.mark(target, target.add(keys, deltas))
                self._sequences[table, worker] = sequence

    def put(self, table, keys, rows, worker, sequence):
        rows = np.require(rows, requirements=("C",))
        with self._locked(table) as target:
            check_unlimited(target)
            check_rows(target, keys, rows)
            if self._is_new(table, worker, sequence):
                self._tables.mark(target, target.find_or_insert(keys, rows))
                self._sequences[table, worker] = sequence

    def sync(self, table, keys, deltas, worker, sequence, versions=None, codec=PLAIN):
        deltas = codec.decode(deltas)
        if versions is not None:
            check_versions(table, keys, versions)
        with self._locked(table) as target:
            check_rows(target, keys, deltas)
            if self._is_new(table, worker, sequence):
                answer = merge(target, self._tables.versions(table), keys, deltas, versions)
                self._sequences[table, worker] = sequence
            else:
                answer = newer(target, self._tables.versions(table), keys, None)
        return answer.encoded(codec)

    def advance(self, step):
        for name in self._tables:
            with self._locked(name) as table:
                table.advance(step)
                stop = table.expire()
            while stop is not None:
                time.sleep(_BETWEEN_SECONDS)
                with self._locked(name) as table:
                    stop = table.expire(stop)

    def save(self, path, step, since=None, shard=0, shards=1, identity=None):
        """Writes every table, as `Store.save`.

        Args:
          path, step, since: as for `Store.save`.
          shard, shards: the number of this store among `shards` stores; both go into the names of the files.
          identity: str, the name of this snapshot; None to draw one.
        """
        *_, files = self.saving(path, step, since, shard, shards, identity)
        return files

    def saving(self, path, step, since=None, shard=0, shards=1, identity=None):
        """Yields what the snapshot is a delta of, None for nothing, once all rows are captured; then what `save` does.

        Args:
          path, step, since, shard, shards, identity: as for `save`.
        """
        return self._snapshots.saving(path, step, since, shard, shards, identity)

    def publish(self, path, epoch, dtype, after=None, shard=0, shards=1):
        """Writes an epoch of a publication, as `Store.publish`; `shard` and `shards` are as for `save`."""
        return self._snapshots.publish(path, epoch, dtype, after, shard, shards)

    def restore(self, path, files, shard=0, shards=1, replacing=_NOTHING):
        """Replaces all rows, as `Store.restore`; keeps only the rows that belong to `shard` of `shards`.

        Args:
          path, files: as for `Store.restore`.
          shard, shards: the number of this store among `shards` stores.
          replacing: a context manager. It is entered when all files are known to be sound, and the rows are replaced
            within it.
        """
        self._snapshots.restore(path, files, shard, shards, replacing)

    def reopen(self):
        """Does nothing: the rows lie in this process."""

    def look(self):
        """Does nothing: the rows go with this process."""

    def clear(self, replacing=_NOTHING):
        """Forgets every row, as `Store.clear`; `replacing` is as for `restore`."""
        self._snapshots.clear(replacing)

    def stats(self):
        return self._tables.stats()

    def close(self):
        """Does nothing."""

    def read_blocks(self, name):
        """Yields copies (keys, rows) of a table's blocks. A row that comes or goes meanwhile may be missing."""
        first = 0
        while True:
            with self._locked(name) as table:
                slots = len(table.keys)
                block = next(snapshot.row_blocks(table.keys[first:], table.rows[first:slots]), None)
                if block is None:
                    return
                there = block[0] != 0
                keys, rows = (array[there] for array in block)
            yield keys, rows
            first += len(there)

    def _is_new(self, table, worker, sequence):
        return sequence > self._sequences.get((table, worker), -1)

    def _locked(self, name):
        return self._tables.locked(name)
