"""The store in this process."""

import contextlib
import re
import threading
import time
import uuid

import numpy as np

from ctr_trainer.embedding.index.key_hash import shard_of
from ctr_trainer.embedding.snapshot import packed_writer, snapshot, snapshot_writer
from ctr_trainer.embedding.store.changed_rows import merge, newer
from ctr_trainer.embedding.store.request_checks import check_deltas, check_versions
from ctr_trainer.embedding.store.row_codec import PLAIN
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.table_rows import TableRows
from ctr_trainer.embedding.store.versions import Versions
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import LIMITS
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

# Seconds to wait for another save of the same store. If that save takes longer, its disk hangs.
_SNAPSHOT_SECONDS = 3600
# Seconds between two holds of a table's lock. A thread that asks again at once would overtake the requests that wait.
_BETWEEN_SECONDS = 1e-4
_NOTHING = contextlib.nullcontext()
_TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class LocalStore(Store):
    """The Store in this process. Safe to use from several threads: each table has a lock.

    Attributes:
      tables: dict[str, Table].
    """

    def __init__(self, make_table=Table):
        """`make_table`: f(TableConfig, tracked=True, most_rows) -> Table."""
        self._make_table = make_table
        self.tables = {}
        self._versions = {}
        self._locks = {}
        self._sequences = {}
        self._lock = threading.RLock()
        self._snapshot_lock, self._one_epoch = threading.Lock(), threading.Lock()
        self._last_snapshot = None

    def create_table(self, config, shard=0, shards=1):
        """Makes an empty table, as `Store.create_table`.

        Args:
          config: the TableConfig.
          shard, shards: the number of this store among `shards` stores, which divide `max_rows` among them.

        Raises:
          UserError: a table of that name exists with another configuration.
        """
        different = self._create_table(config, shard, shards).config.differs(config)
        if different:
            raise UserError(
                "table {} exists with {} = {}, not {}: use the same configuration, or another table name, or restart "
                "the service".format(config.name, *different)
            )

    def _create_restored(self, config, path, shard, shards):
        # A restored table may have other limits and other optimizer settings, but not another layout of its rows.
        different = self._create_table(config, shard, shards).config.differs(config, but=(*LIMITS, "settings"))
        if different:
            field, asked, saved = different
            raise UserError(
                f"table {config.name} is asked for with {field} = {asked}, but its rows in {path} were saved with "
                f"{saved}: give that value, or another --model_dir"
            )

    def _create_table(self, config, shard, shards):
        """-> the Table of that name; makes it if there is none."""
        if not _TABLE_NAME.fullmatch(config.name):
            raise UserError(
                f"table name {config.name!r}: expected up to 100 characters, each a letter, a digit or one of _ . -"
            )
        with self._lock:
            if config.name not in self.tables:
                self._locks[config.name] = threading.RLock()
                table = self._make_table(config, tracked=True, most_rows=config.most_rows(shard, shards))
                self._versions[config.name] = Versions()
                table.follow(self._versions[config.name])
                self.tables[config.name] = table
            return self.tables[config.name]

    def worker_rows(self, config, copies):
        return TableRows(self.tables[config.name])

    def pull(self, table, keys, missing="initial"):
        with self._locked(table) as target:
            return target.read(keys, missing)

    def pull_newer(self, table, keys, versions, codec=PLAIN):
        check_versions(table, keys, versions)
        with self._locked(table) as target:
            answer = newer(target, self._versions[table], keys, versions)
        return answer.encoded(codec)

    def push(self, table, keys, deltas, worker, sequence):
        deltas = np.require(deltas, requirements=("C",))
        with self._locked(table) as target:
            check_deltas(target, keys, deltas)
            if self._is_new(target, worker, sequence):
                slots = target.add(keys, deltas)
                self._mark(target, slots)
                self._sequences[table, worker] = sequence

    def sync(self, table, keys, deltas, worker, sequence, versions=None, codec=PLAIN):
        deltas = codec.decode(deltas)
        if versions is not None:
            check_versions(table, keys, versions)
        with self._locked(table) as target:
            check_deltas(target, keys, deltas)
            if self._is_new(target, worker, sequence):
                answer = merge(target, self._versions[table], keys, deltas, versions)
                self._sequences[table, worker] = sequence
            else:
                answer = newer(target, self._versions[table], keys, None)
        return answer.encoded(codec)

    def advance(self, step):
        for name in list(self.tables):
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
        path = path_of(path)
        with self._alone("save"):
            if since is not None and since != self._last_snapshot:
                since = None
            # Until all files are written, there is no snapshot that a delta could follow.
            self._last_snapshot, identity = None, identity or uuid.uuid4().hex
            captures = []
            try:
                path.mkdir(parents=True, exist_ok=True)
                for name in sorted(self.tables):
                    with self._locked(name) as table:
                        captures.append((self._locked(name), table.changes.begin(table, full=since is None)))
                yield since
                files = []
                for lock, capture in captures:
                    files += snapshot_writer.write(path, capture, lock, identity, since, step, shard, shards)
            except OSError as error:
                raise UserError(f"snapshot of step {step} in {path}: {error.strerror} ({error.filename})") from None
            finally:
                for lock, _ in captures:
                    with lock as table:
                        table.changes.end()
            self._last_snapshot = identity
            yield files

    def publish(self, path, epoch, dtype, after=None, shard=0, shards=1):
        """Writes an epoch of a publication, as `Store.publish`; `shard` and `shards` are as for `save`."""
        path = path_of(path)
        with self._one_epoch:
            try:
                path.mkdir(parents=True, exist_ok=True)
                takings = []
                for name in sorted(self.tables):
                    with self._locked(name) as table, table.locked():
                        table.keep_published()
                        takings.append((self._locked(name), table.published.begin(table, epoch, after)))
                files = []
                for lock, taking in takings:
                    files += packed_writer.write(path, taking, lock, dtype, epoch, shard, shards)
                return files
            except OSError as error:
                raise UserError(f"epoch {epoch} in {path}: {error.strerror} ({error.filename})") from None

    def restore(self, path, files, shard=0, shards=1, replacing=_NOTHING):
        """Replaces all rows, as `Store.restore`; keeps only the rows that belong to `shard` of `shards`.

        Args:
          path, files: as for `Store.restore`.
          shard, shards: the number of this store among `shards` stores.
          replacing: a context manager. It is entered when all files are known to be sound, and the rows are replaced
            within it.
        """
        with self._alone("restore"):
            snapshot.check_chain(files)
            for entry in files:
                snapshot.check(path, entry)
                self._create_restored(snapshot.read_config(path, entry), path, shard, shards)
            with replacing:
                self._clear()
                self._fill(path, files, shard, shards)
            self._last_snapshot = files[-1].get("snapshot") if files else None

    def _fill(self, path, files, shard, shards):
        for config, keys, rows in snapshot.merged(path, files):
            own = _owned(keys, shard, shards)
            with self._locked(config.name) as table:
                self._mark(table, table.restore(keys[own], rows[own]))
        for entry in files:
            if entry.get("kind") == "counts" and entry["snapshot"] == files[-1]["snapshot"]:
                with self._locked(entry["table"]) as table:
                    if table.limits.admission is not None:
                        table.limits.admission.merge_counts(*snapshot.read_counts(path, entry))
            if entry.get("kind") == "use":
                for keys, *use in snapshot.read_use(path, entry):
                    with self._locked(entry["table"]) as table:
                        table.set_use(keys, *use)
        for name in list(self.tables):
            with self._locked(name) as table:
                table.changes.restored(table)
                table.trim()

    def reopen(self):
        """Does nothing: the rows lie in this process."""

    def look(self):
        """Does nothing: the rows go with this process."""

    def clear(self, replacing=_NOTHING):
        """Forgets every row, as `Store.clear`; `replacing` is as for `restore`."""
        with self._alone("clear"), replacing:
            self._clear()

    def _clear(self):
        self._last_snapshot = None
        for name in list(self.tables):
            with self._locked(name) as table:
                table.clear()
                self._versions[name].clear()

    def stats(self):
        return {
            "tables": {
                name: {**table.stats(), "bytes": table.nbytes + self._versions[name].nbytes}
                for name, table in list(self.tables.items())
            }
        }

    @contextlib.contextmanager
    def _alone(self, what):
        """Lets one save, restore or clear run at a time."""
        if not self._snapshot_lock.acquire(timeout=_SNAPSHOT_SECONDS):
            raise UserError(
                f"{what}: another save or restore of this store has not ended within {_SNAPSHOT_SECONDS} s: see "
                "whether its disk hangs"
            )
        try:
            yield
        finally:
            self._snapshot_lock.release()

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
        return sequence > self._sequences.get((table.config.name, worker), -1)

    def _mark(self, table, slots):
        """Gives the rows at `slots` the version of a new push."""
        versions = self._versions[table.config.name]
        versions.reserve(len(table.keys))[slots[slots >= 0]] = versions.next()

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


def _owned(keys, shard, shards):
    """-> which of the keys int64[n] belong to a shard: bool[n], or a slice."""
    if shards == 1:
        return slice(None)
    owner = np.empty(len(keys), np.int32)
    shard_of(keys, shards, owner)
    return owner == shard
