"""The files of a store in this process: snapshots, which a training resumes from, and epochs of a publication."""

import contextlib
import threading
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ctr_trainer.embedding.index.key_kernels import shard_of
from ctr_trainer.embedding.snapshot import packed_rows, snapshot, snapshot_writer
from ctr_trainer.embedding.snapshot.snapshot import FileEntry
from ctr_trainer.embedding.store.locked_tables import LockedTables
from ctr_trainer.embedding.table.changes import Changes
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.system.files.path import AnyPath
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

# Seconds to wait for another save of the same store. If that save takes longer, its disk hangs.
_SNAPSHOT_SECONDS = 3600
_NOTHING = contextlib.nullcontext()


class StoreSnapshots:
    """Writes the tables of a store into files, and reads them. Rows may change while files are written.

    Safe to use from several threads.
    """

    def __init__(self, tables: LockedTables) -> None:
        self._tables = tables
        self._one, self._one_epoch = threading.Lock(), threading.Lock()
        self._last: str | None = None

    def saving(
        self, path: AnyPath, step: int, since: str | None = None, identity: str | None = None
    ) -> Generator[Any, None, None]:
        """Yields what the snapshot is a delta of, None for nothing, once all rows are captured; then what `save` does.

        `identity` names this snapshot, alike for all shards; None draws a name. For the others see `Store.save`.
        """
        directory = path_of(path)
        with self._alone("save"):
            if since is not None and since != self._last:
                since = None
            # Until all files are written, there is no snapshot that a delta could follow.
            self._last, identity = None, identity or uuid.uuid4().hex
            captures = []
            try:
                directory.mkdir(parents=True, exist_ok=True)
                for name in self._tables:
                    with self._tables.locked(name) as table:
                        captures.append((self._tables.locked(name), _changes(table).begin(table, full=since is None)))
                yield since
                files = []
                for lock, capture in captures:
                    files += snapshot_writer.write(directory, capture, lock, identity, since, step, *self._tables.place)
            except OSError as error:
                raise UserError(
                    f"snapshot of step {step} in {directory}: {error.strerror} ({error.filename})"
                ) from None
            finally:
                for lock, _ in captures:
                    with lock as table:
                        _changes(table).end()
            self._last = identity
            yield files

    def publish(self, path: AnyPath, epoch: int, dtype: str, after: int | None) -> list[FileEntry]:
        directory = path_of(path)
        with self._one_epoch:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                takings = []
                for name in self._tables:
                    with self._tables.locked(name) as table, table.locked():
                        table.watchers.keep_published()
                        published = table.watchers.published
                        assert published is not None
                        takings.append((self._tables.locked(name), published.begin(table, epoch, after)))
                files = []
                for lock, taking in takings:
                    files += packed_rows.write(directory, taking, lock, dtype, epoch, *self._tables.place)
                return files
            except OSError as error:
                raise UserError(f"epoch {epoch} in {directory}: {error.strerror} ({error.filename})") from None

    def restore(
        self, path: AnyPath, files: Sequence[FileEntry], replacing: AbstractContextManager[None] = _NOTHING
    ) -> None:
        """Replaces all rows, as `Store.restore`; keeps only the rows that belong to this shard.

        `replacing` is entered when all files are known to be sound, and the rows are replaced within it.
        """
        with self._alone("restore"):
            snapshot.check_chain(files)
            for entry in files:
                snapshot.check(path, entry)
                self._tables.create_restored(snapshot.read_config(path, entry), path)
            with replacing:
                self._clear()
                self._fill(path, files)
            self._last = files[-1].get("snapshot") if files else None

    def clear(self, replacing: AbstractContextManager[None] = _NOTHING) -> None:
        """Forgets every row, within `replacing`."""
        with self._alone("clear"), replacing:
            self._clear()

    def _clear(self) -> None:
        self._last = None
        self._tables.clear()

    def _fill(self, path: AnyPath, files: Sequence[FileEntry]) -> None:
        for config, keys, rows in snapshot.merged(path, files):
            own = _owned(keys, *self._tables.place)
            with self._tables.locked(config.name) as table:
                self._tables.mark(table, table.restore(keys[own], rows[own]))
        for entry in files:
            if entry.get("kind") == "counts" and entry["snapshot"] == files[-1]["snapshot"]:
                with self._tables.locked(entry["table"]) as table:
                    if table.limits.admission is not None:
                        table.limits.admission.merge_counts(*snapshot.read_counts(path, entry))
            if entry.get("kind") == "use":
                for keys, *use in snapshot.read_use(path, entry):
                    with self._tables.locked(entry["table"]) as table:
                        table.set_use(keys, *use)
        for name in self._tables:
            with self._tables.locked(name) as table:
                _changes(table).restored(table)
                table.trim()

    @contextlib.contextmanager
    def _alone(self, what: str) -> Iterator[None]:
        """Lets one save, restore or clear run at a time."""
        if not self._one.acquire(timeout=_SNAPSHOT_SECONDS):
            raise UserError(
                f"{what}: another save or restore of this store has not ended within {_SNAPSHOT_SECONDS} s: check "
                "whether its disk hangs"
            )
        try:
            yield
        finally:
            self._one.release()


def _owned(keys: np.ndarray, shard: int, shards: int) -> np.ndarray | slice:
    """Returns which of the keys int64[n] belong to a shard: bool[n], or a slice."""
    if shards == 1:
        return slice(None)
    owner = np.empty(len(keys), np.int32)
    shard_of(keys, shards, owner)
    return owner == shard


def _changes(table: Table) -> Changes:
    assert table.watchers.changes is not None
    return table.watchers.changes
