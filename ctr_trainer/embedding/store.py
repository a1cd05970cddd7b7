"""Where the trainer's embedding rows are kept."""

import dataclasses
import pathlib
import re
import threading
from typing import Protocol

import numpy as np

from ctr_trainer.embedding import half, row_kernels, snapshot, version_kernels
from ctr_trainer.embedding.index_kernels import shard_of
from ctr_trainer.embedding.table import Table
from ctr_trainer.embedding.versions import NONE_KNOWN, Newer, Versions
from ctr_trainer.errors import UserError

_TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class Store(Protocol):
    """Embedding tables by name, shared by the workers of a job.

    Keys are int64[U], distinct within a call and not 0; rows and deltas are float32[U, width] as TableConfig lays them
    out. A user's mistake, and a store that is gone, raise UserError.

    A row has a version, uint32, which each push to it changes: 0 for a row that is not there and reads as its initial
    row. Versions are comparable for one key only, and only within one life of the store.
    """

    def create_table(self, config):
        """Makes an empty table; a table that is there with the same TableConfig stays as it is."""

    def pull(self, table, keys, missing="initial"):
        """-> float32[U, width]. A key without a row reads its initial row, or `zeros`; no row is created."""

    def pull_newer(self, table, keys, versions, packed=False):
        """-> `Newer`: the rows whose version is not that of `versions` uint32[U], which the asker knows.

        Args:
          packed: whether rows come as float16[n, width + 1], see `half`.
        """

    def push(self, table, keys, deltas, worker, sequence):
        """Adds `deltas` to rows, creating missing ones at their initial values.

        Applied exactly once: a `sequence` not greater than the worker's last one for that table does nothing. So
        `worker` has to be another name each time a worker starts.
        """

    def sync(self, table, keys, deltas, worker, sequence, versions=None):
        """`push`, and back the rows that others changed, in one round trip.

        Args:
          deltas: float32[U, width]; or float16[U, width + 1], see `half`: then the answer's rows are packed too.
          versions: uint32[U], what the worker last saw of each row; None brings all rows back.

        Returns:
          `Newer`: the rows that were of another version than the worker knew, with `deltas` added. A row that is not
          among them is the one the worker knew plus its delta, to the bit. A repeated sync brings all rows back.
        """

    def save(self, path, step):
        """Writes every table into the directory `path`.

        Returns:
          for `restore`, a list of dicts of `file` (relative to `path`), `table`, `rows`, `bytes`, `crc32`.
        """

    def restore(self, path, files):
        """Replaces all rows by those of `save`, from any number of shards; a bad file leaves the rows as they are."""

    def clear(self):
        """Forgets every row; the tables stay."""

    def stats(self):
        """-> {"tables": {name: {"rows": int, "bytes": int}}, ...}"""

    def close(self):
        """Ends the use of the store."""


class LocalStore:
    """The Store in this process. Safe to use from several threads: one lock a table.

    Attributes:
      tables: dict[str, Table].
    """

    def __init__(self):
        self.tables = {}
        self._versions = {}
        self._locks = {}
        self._sequences = {}
        self._lock = threading.RLock()

    def create_table(self, config):
        if not _TABLE_NAME.fullmatch(config.name):
            raise UserError(f"table name {config.name!r}: expected up to 100 letters, digits, and any of _ . -")
        with self._lock:
            if config.name not in self.tables:
                self._locks[config.name] = threading.RLock()
                self._versions[config.name] = Versions()
                self.tables[config.name] = Table(config)
            _refuse_difference(self.tables[config.name].config, config)

    def pull(self, table, keys, missing="initial"):
        with self._locked(table) as target:
            return target.read(keys, missing)

    def pull_newer(self, table, keys, versions, packed=False):
        _check_versions(table, keys, versions)
        with self._locked(table) as target:
            newer = self._newer(target, keys, versions)
        return _packed(newer) if packed else newer

    def push(self, table, keys, deltas, worker, sequence):
        with self._locked(table) as target:
            _check_deltas(target, keys, deltas)
            if self._is_new(target, worker, sequence):
                slots = target.add(keys, deltas)
                self._mark(target, slots)
                self._sequences[table, worker] = sequence

    def sync(self, table, keys, deltas, worker, sequence, versions=None):
        packed = deltas.dtype == np.float16
        deltas = half.unpack(deltas) if packed else deltas
        if versions is not None:
            _check_versions(table, keys, versions)
        with self._locked(table) as target:
            _check_deltas(target, keys, deltas)
            if self._is_new(target, worker, sequence):
                newer = self._merge(target, keys, deltas, versions)
                self._sequences[table, worker] = sequence
            else:
                newer = self._newer(target, keys, None)
        return _packed(newer) if packed else newer

    def save(self, path, step, shard=0, shards=1):
        """As Store; `shard` of `shards` names the files. `step` is only for the reader of an error."""
        path = pathlib.Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            files = []
            for name in sorted(self.tables):
                with self._locked(name) as table:
                    files.append(snapshot.write(path, table, shard, shards))
            return files
        except OSError as error:
            raise UserError(f"snapshot of step {step} in {path}: {error.strerror} ({error.filename})") from None

    def restore(self, path, files, shard=0, shards=1):
        """As Store; keeps only the rows that belong to `shard` of `shards`."""
        for entry in files:
            snapshot.check(path, entry)
            config, _, _ = next(snapshot.read(path, entry))
            self.create_table(config)
        self.clear()
        for entry in files:
            for config, keys, rows in snapshot.read(path, entry):
                if shards > 1:
                    owner = np.empty(len(keys), np.int32)
                    shard_of(keys, shards, owner)
                    own = owner == shard
                    keys, rows = keys[own], rows[own]
                with self._locked(config.name) as table:
                    self._mark(table, table.find_or_insert(keys, rows))

    def clear(self):
        for name in list(self.tables):
            with self._locked(name) as table:
                table.clear()
                self._versions[name].clear()

    def stats(self):
        tables = list(self.tables.items())
        return {
            "tables": {
                name: {"rows": len(table), "bytes": table.nbytes + self._versions[name].nbytes}
                for name, table in tables
            }
        }

    def close(self):
        """Nothing to do."""

    def read_blocks(self, name):
        """Yields (keys, rows) copies of a table, in blocks; rows that come meanwhile may or may not be among them."""
        first = 0
        while True:
            with self._locked(name) as table:
                block = next(snapshot.row_blocks(table.keys[first:], table.rows[first:]), None)
                if block is None:
                    return
                keys, rows = (array.copy() for array in block)
            yield keys, rows
            first += len(keys)

    def _is_new(self, table, worker, sequence):
        return sequence > self._sequences.get((table.config.name, worker), -1)

    def _mark(self, table, slots):
        """Gives the rows at `slots` the version of a new push."""
        versions = self._versions[table.config.name]
        versions.reserve(len(table))[slots[slots >= 0]] = versions.next()

    def _merge(self, table, keys, deltas, known):
        """-> `Newer` of the rows that were not as known, after the deltas were added."""
        count, versions = len(keys), self._versions[table.config.name]
        number = versions.next()
        slots = table.find_or_create(keys)
        known = np.full(count, NONE_KNOWN, np.uint32) if known is None else np.require(known, requirements=("C", "A"))
        positions = np.empty(count, np.int64)
        rows = np.empty((count, table.config.width), np.float32)
        deltas = np.require(deltas, requirements=("C", "A"))
        current = versions.reserve(len(table))
        newer = version_kernels.merge(table.rows, current, slots, known, deltas, number, positions, rows)
        return Newer(np.full(count, number, np.uint32), positions[:newer], rows[:newer])

    def _newer(self, table, keys, known):
        slots, versions = table.find(keys), self._versions[table.config.name]
        versions.reserve(len(table))
        new_versions, positions = versions.differ(slots, known)
        rows = table.take(slots[positions])
        absent = np.flatnonzero(slots[positions] < 0)
        if len(absent):
            rows[absent] = table.initial_rows(keys[positions[absent]])
        return Newer(new_versions, positions, rows)

    def _locked(self, name):
        if name not in self.tables:
            raise UserError(f"no table {name!r}; there are: {', '.join(sorted(self.tables)) or 'none'}")
        return _Locked(self._locks[name], self.tables[name])


class _Locked:
    """A table while its lock is held."""

    def __init__(self, lock, table):
        self._lock = lock
        self._table = table

    def __enter__(self):
        self._lock.acquire()
        return self._table

    def __exit__(self, *_):
        self._lock.release()


def _packed(newer):
    return dataclasses.replace(newer, rows=half.pack(newer.rows))


def _check_versions(table, keys, versions):
    if versions.dtype != np.uint32 or versions.shape != keys.shape:
        raise UserError(f"table {table}: versions {versions.dtype}{list(versions.shape)}, expected uint32[{len(keys)}]")


def _check_deltas(table, keys, deltas):
    name, width = table.config.name, table.config.width
    if deltas.dtype != np.float32 or deltas.shape != (len(keys), width):
        raise UserError(
            f"table {name}: deltas {deltas.dtype}{list(deltas.shape)}, expected float32{[len(keys), width]}"
        )
    if len(keys) and not keys.all():
        raise UserError(f"table {name}: the key 0 stands for no value and has no row to push to")
    bad = row_kernels.first_not_finite(np.require(deltas, requirements=("C", "A")))
    if bad >= 0:
        raise UserError(
            f"table {name}: the change of key {keys[bad]} is not finite: the training diverged; "
            "lower the learning rate and start again from the last checkpoint"
        )


def _refuse_difference(have, want):
    for field in dataclasses.fields(have):
        old, new = getattr(have, field.name), getattr(want, field.name)
        if old != new:
            raise UserError(
                f"table {have.name} exists with {field.name} = {old}, not {new}: use the same configuration, "
                "or another table name, or restart the service"
            )
