"""A store in the memory of this process."""

import contextlib
import math
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import tqdm

from ctr_trainer.embedding.index.key_kernels import owned
from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.snapshot import packed_rows, snapshot, snapshot_writer
from ctr_trainer.embedding.snapshot.snapshot import FileEntry
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.versions import (
    ChangedRows,
    Versions,
    check_versions,
    checked_rows,
    merge_changes,
    newer,
)
from ctr_trainer.embedding.table.changes import Capture, Changes
from ctr_trainer.embedding.table.cold_rows import Disk, LinkedRows
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import LIMITS, TableConfig
from ctr_trainer.settings.embedding_config import refused_on_disk
from ctr_trainer.system.files.paths import Advanced, AnyPath, path_of
from ctr_trainer.system.messages.errors import UserError

# Seconds between two uses of a table's lock. A thread that takes it again at once would overtake waiting requests.
_BETWEEN_SECONDS = 1e-4
# Seconds to wait for another save of the same store. If the save takes longer, its disk hangs.
_SNAPSHOT_SECONDS = 3600
_NOTHING = contextlib.nullcontext()
_TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_BLOCK_BYTES = 16 << 20  # Bytes of rows that are copied at once under the table's lock.


class LocalStore(Store):
    """A Store in this process. It is thread-safe, because it uses each table under its lock.

    With `memory`, the workers of a host share the tables, each through its own store, and train them together.
    Staleness: none. A lookup sees every step that another worker has finished. While another worker's step runs, a
    lookup may see some rows before the step and some rows after it, as in Hogwild (Niu et al., NeurIPS 2011). Unlike in
    Hogwild, no update is lost, because workers update rows one after the other. The order of the workers' steps differs
    between two runs.

    Args:
      memory: the memory of the tables, whose owner must make each table first; None for this process's own.
      is_published: whether to track the rows that the next epoch of a publication contains from the beginning.
      disk: the place of rows that do not fit into its memory, which the tables share evenly; None to keep all rows in
        memory. Such a store has no tables with `max_rows`.

    `tables`: the tables by name.
    """

    def __init__(
        self, memory: SharedMemory | None = None, is_published: bool = False, disk: Disk | None = None
    ) -> None:
        self._memory, self._is_published, self._disk = memory, is_published, disk
        self.tables: dict[str, Table] = {}
        self._versions: dict[str, Versions] = {}
        self._place, self._creating = (0, 1), threading.Lock()
        self._sequences: dict[tuple[str, str], int] = {}
        self._one, self._one_epoch = threading.Lock(), threading.Lock()
        self._last: str | None = None  # The last snapshot, which a delta can follow.

    def take_place(self, shard: int, shards: int) -> None:
        """Makes this store hold only the rows of `shard` among `shards` stores. By default a store holds all rows."""
        self._place = shard, shards

    def create_table(self, config: TableConfig) -> None:
        different = self._created(config).differs(config)
        if different:
            raise UserError(
                "table {} exists with {} = {}, not {}: use the same configuration, or another table name, or restart "
                "the service".format(config.name, *different)
            )

    def config(self, name: str) -> TableConfig:
        return self._table(name).config

    def pull(self, table: str, keys: np.ndarray, versions: np.ndarray) -> ChangedRows:
        check_versions(table, keys, versions)
        with self._locked(table, keys) as target:
            answer = newer(target, self._versions[table], keys, versions)
        return answer.encoded(target.config.form)

    def put(self, table: str, keys: np.ndarray, rows: np.ndarray, worker: str, sequence: int) -> None:
        with self._locked(table, keys) as target:
            if target.config.has_limits:
                raise UserError(f"table {table}: a put to a table with limits; sync changes")
            rows = checked_rows(target, keys, rows)
            if self._is_new(table, worker, sequence):
                self._versions[table].mark(target, target.find_or_insert(keys, rows))
                self._sequences[table, worker] = sequence

    def sync(
        self,
        table: str,
        keys: np.ndarray,
        deltas: np.ndarray,
        worker: str,
        sequence: int,
        versions: np.ndarray | None = None,
    ) -> ChangedRows:
        if versions is not None:
            check_versions(table, keys, versions)
        with self._locked(table, keys) as target:
            deltas = checked_rows(target, keys, deltas)
            if self._is_new(table, worker, sequence):
                answer = merge_changes(target, self._versions[table], keys, deltas, versions)
                self._sequences[table, worker] = sequence
            else:
                answer = newer(target, self._versions[table], keys, None)
        return answer.encoded(target.config.form)

    def advance(self, step: int) -> None:
        self.advance_within(step, math.inf)

    def advance_within(self, step: int, seconds: float, first: str = "", slot: int = 0) -> tuple[str, int] | None:
        """Calls `advance`, which may take minutes if very many rows expire at once, for about `seconds`.

        Returns (table, slot), with which the next call must continue as `first` and `slot`; None at the end.
        """
        until = time.monotonic() + seconds
        for name, table in sorted(self.tables.items()):
            at = slot if name == first else 0 if name > first else None
            while at is not None:
                with table.lock.alone():
                    table.advance(step)
                    at = table.expire(at)
                if at is None:
                    table.expire_on_disk()
                elif time.monotonic() > until:
                    return name, at
                else:
                    time.sleep(_BETWEEN_SECONDS)
        return None

    def begin_save(
        self, path: AnyPath, step: int, since: str | None = None, by_key: bool = False
    ) -> Callable[[], list[FileEntry]]:
        *_, files = self.saving(path, step, since, by_key=by_key)
        return lambda: files

    def saving(
        self,
        path: AnyPath,
        step: int,
        since: str | None = None,
        identity: str | None = None,
        by_key: bool = False,
    ) -> Generator[Any, None, None]:
        """Yields the delta's base (None for a full snapshot) once all rows are captured, then the result of `save`.

        `identity` is the name of this snapshot, the same in all shards; None makes one.
        """
        directory = path_of(path)
        with self._alone("save"):
            if since is not None and since != self._last:
                since = None
            # Until all files are written, no delta can follow this snapshot.
            self._last, identity = None, identity or uuid.uuid4().hex
            captures: list[tuple[Table, Capture, LinkedRows | None]] = []
            links = contextlib.ExitStack()
            try:
                directory.mkdir(parents=True, exist_ok=True)
                for _, table in sorted(self.tables.items()):
                    with table.lock.alone():
                        cold = links.enter_context(table.cold.linked()) if table.cold else None
                        captures.append((table, _changes(table).begin(table, since is None, by_key), cold))
                yield since
                files = []
                for table, capture, cold in captures:
                    files += snapshot_writer.write(directory, capture, table, identity, since, step, *self._place)
                    if cold is not None:
                        files += snapshot.write_cold(directory, cold, files[-1], *self._place)
            except OSError as error:
                raise UserError(
                    f"snapshot of step {step} in {directory}: {error.strerror} ({error.filename})"
                ) from None
            finally:
                links.close()
                for table, *_ in captures:
                    with table.lock.alone():
                        _changes(table).end()
            self._last = identity
            yield files

    def publish(self, path: AnyPath, epoch: int, dtype: str, after: int | None = None) -> list[FileEntry]:
        directory = path_of(path)
        with self._one_epoch:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                takings = []
                for _, table in sorted(self.tables.items()):
                    with table.lock.alone():
                        takings.append((table, table.keep_published().begin_epoch(table, epoch, after)))
                files = []
                for table, taking in takings:
                    files += packed_rows.write(directory, taking, table, dtype, epoch, *self._place)
                return files
            except OSError as error:
                raise UserError(f"epoch {epoch} in {directory}: {error.strerror} ({error.filename})") from None

    def restore(
        self,
        path: AnyPath,
        files: Sequence[FileEntry],
        advanced: Advanced = lambda text: None,
        replacing: AbstractContextManager[None] = _NOTHING,
    ) -> None:
        """Restores the rows of this shard; replaces them inside `replacing`, after all files are checked."""
        with self._alone("restore"):
            snapshot.check_chain(files)
            for entry in files:
                snapshot.check(path, entry, advanced)
            is_same = True  # Whether all rows have the form of their tables.
            for entry in snapshot.rows_files(files):
                config = snapshot.read_config(path, entry)
                created = self._created(config)
                is_same &= created.form is config.form
                if different := created.differs(config, but=(*LIMITS, "settings", "row_dtype")):
                    field, asked, saved = different
                    raise UserError(
                        f"table {config.name} is configured with {field} = {asked}, but its rows in {path} were saved "
                        f"with {saved}: give that value, or another model_dir"
                    )
            with replacing:
                self._last = None
                for _, table in sorted(self.tables.items()):
                    with table.lock.alone():
                        table.clear()
                is_linked = is_same and self._link(path, files, advanced)
                self._fill(path, files, is_linked, advanced)
            # Rows that were on disk there, and are in memory now, are in no file that a delta could follow. The rows of
            # a chain have one form.
            self._last = files[-1]["snapshot"] if files and is_linked else None

    def stats(self) -> dict[str, Any]:
        nbytes = {name: table.nbytes + self._versions[name].nbytes for name, table in list(self.tables.items())}
        return {"tables": {name: {**self.tables[name].stats(), "bytes": size} for name, size in nbytes.items()}}

    def read_blocks(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (keys, rows) copies of a table's blocks. A row that is added or removed meanwhile may be missing."""
        first, step = 0, max(_BLOCK_BYTES // (self.config(name).width * 4 + 8), 1)
        while first < len(self.tables[name].keys):
            with self._locked(name) as table:
                keys = table.keys[first : first + step]
                there = keys != 0
                keys, rows = keys[there], table.take(first + np.flatnonzero(there))
            yield keys, rows
            first += len(there)
        yield from self.tables[name].read_cold()

    def close(self) -> None:
        """Removes the rows on disk."""
        for table in self.tables.values():
            if table.cold is not None:
                table.cold.close()

    @contextlib.contextmanager
    def _locked(self, name: str, keys: np.ndarray | None = None) -> Iterator[Table]:
        """Yields a table under its lock. Rows of `keys` that are on disk are read before the lock is taken."""
        table = self._table(name)
        if keys is not None:
            table.fetch(keys)
        with table.lock.alone():
            yield table

    def _table(self, name: str) -> Table:
        if name not in self.tables:
            raise UserError(f"no table {name!r}; there are: {', '.join(sorted(self.tables)) or 'none'}")
        return self.tables[name]

    def _created(self, config: TableConfig) -> TableConfig:
        """Makes a table if it does not exist; returns its configuration."""
        name = config.name
        if not _TABLE_NAME.fullmatch(name):
            raise UserError(
                f"table name {name!r}: expected up to 100 characters, each a letter, a digit or one of _ . -"
            )
        with self._creating:
            if name not in self.tables:
                memory = self._memory and self._memory.under(name)
                if self._disk and config.max_rows:
                    raise refused_on_disk(name)
                table = Table(config, True, config.most_rows(*self._place), memory, self._disk)
                if self._is_published:
                    table.keep_published()
                self._versions[name] = Versions()
                table.watchers.append(self._versions[name])
                self.tables[name] = table
                if self._disk:
                    for each in self.tables.values():
                        each.share_memory(self._disk.memory // len(self.tables))
            return self.tables[name].config

    def _is_new(self, table: str, worker: str, sequence: int) -> bool:
        return sequence > self._sequences.get((table, worker), -1)

    def _link(self, path: AnyPath, files: Sequence[FileEntry], advanced: Advanced) -> bool:
        """Links the rows on disk of a snapshot; returns False if they are of other shards, or if there is no disk."""
        cold = list(snapshot.cold_tables(path, files))
        if cold and not (self._disk and all(shards == self._place[1] for _, (_, shards), _, _ in cold)):
            return False
        for name, place, rows, own in cold:
            if place == self._place:
                with self._locked(name) as table:
                    assert table.cold is not None
                    table.cold.restore(own, rows, advanced)
        return True

    def _fill(self, path: AnyPath, files: Sequence[FileEntry], is_linked: bool, advanced: Advanced) -> None:
        for name, rows in snapshot.rows_of_snapshots(files).items():
            with self._locked(name) as table:
                table.reserve(max(rows) // self._place[1])
        with tqdm.tqdm(desc="reading rows", unit=" rows", delay=1, disable=not sys.stderr.isatty()) as bar:
            for config, keys, stored in snapshot.merged(path, files, not is_linked, advanced):
                own = owned(keys, *self._place)
                with self._locked(config.name) as table:
                    self._versions[config.name].mark(table, table.restore(keys[own], stored[own], config.form))
                bar.update(len(keys))
                advanced(f"restoring table {config.name}")
        for entry in files:
            if entry["kind"] == "counts" and entry["snapshot"] == files[-1]["snapshot"]:
                with self._locked(entry["table"]) as table:
                    if table.limits.admission is not None:
                        table.limits.admission.merge_counts(*snapshot.read_counts(path, entry))
            if entry["kind"] == "use":
                for keys, *use in snapshot.read_use(path, entry):
                    with self._locked(entry["table"]) as table:
                        table.set_use(keys, *use)
        for _, table in sorted(self.tables.items()):
            with table.lock.alone():
                table.trim()

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Allows only one save or restore at a time."""
        if not self._one.acquire(timeout=_SNAPSHOT_SECONDS):
            raise UserError(
                f"{what}: another save or restore of this store has not ended within {_SNAPSHOT_SECONDS} s: check "
                "whether its disk hangs"
            )
        try:
            yield
        finally:
            self._one.release()


def _changes(table: Table) -> Changes:
    assert table.changes is not None
    return table.changes
