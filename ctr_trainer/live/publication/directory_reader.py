"""Reads a publication from a directory or a store into memory-mapped files on this host."""

import contextlib
import dataclasses
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from ctr_trainer.embedding.snapshot.packed_rows import ROWS, read_removed, read_rows
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.reading import DenseFiles, MappedRows, NewerRows, pause
from ctr_trainer.live.publication.records import Publication, Record
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_TOWER_BLOCK = 4 << 20
_RETRY_SECONDS = 30.0  # A damaged file is read again after this time, or once there is a newer record.
_Rows = TypeVar("_Rows", MappedRows, NewerRows)


@dataclasses.dataclass(frozen=True)
class _State:
    """The rows after a record is applied.

    Attributes:
      holder: the holder of the generation.
      tables: the rows of each table after this record, or after an earlier one, which `changes` follow.
      changes: the later changes of each table; {} if there are none.
    """

    holder: str
    record: Record
    tables: dict[str, MappedRows]
    changes: dict[str, NewerRows]


class DirectoryReader:
    """A `RowReader` of a directory at a path or URL.

    It loads the newest base, and applies the later epochs in order after it has checked their files. The changes of
    later epochs stay separate from the served rows until `advance` makes them visible together. If an epoch is missing
    or damaged, or if another generation becomes the current one, new tables are filled from the newest base while the
    earlier tables are served.

    Args:
      cache_dir: see `open_reader`.

    Raises:
      UserError: there is no publication, or it cannot be read.
    """

    lookups = hits = 0
    unreadable = ""  # The rows are on this host.

    def __init__(self, url: str, cache_dir: str) -> None:
        self._url = url
        self._place = tempfile.TemporaryDirectory(prefix="ctr_trainer-rows-", dir=cache_dir or None)
        self._dense = DenseFiles(self._place.name)
        self._failed: tuple[object, Exception, float] | None = None  # (contents, error, time before the next try).
        self._ready: _State | None = None  # The newest state, whose rows are read and whose tower is copied.
        try:
            self._state = self._loaded(self._publication())
            self._fetch_dense(self._state.record)
        except BaseException:
            self._place.cleanup()
            raise

    @property
    def record(self) -> Record:
        return self._state.record

    def refresh(self) -> Record | None:
        self._settle()
        publication = self._publication()
        names = records.list_records(self._url, publication.generation)
        pause()
        if self._failed and self._failed[0] == (publication, names) and time.monotonic() < self._failed[2]:
            raise self._failed[1].with_traceback(None)
        last, self._ready = self._ready or self._state, None  # After an error, its changes may have rows of an epoch.
        try:
            newest = self._after(last, publication, names)
            self._fetch_dense(newest.record)
        except (UserError, OSError) as error:
            self._failed = (publication, names), error, time.monotonic() + _RETRY_SECONDS
            raise
        self._failed = None
        if newest is not self._state:
            self._ready = newest
        return self._ready.record if self._ready else None

    def advance(self) -> None:
        if self._ready is not None:
            self._state, self._ready = self._ready, None

    def read(self, table: str, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        state = self._state
        if table not in state.tables:
            raise UserError(f"{self._url}: no table {table}; there are {', '.join(state.tables)}")
        if state.changes:
            return state.changes[table].read_over(state.tables[table], keys)
        return state.tables[table].find(keys)

    def dense_path(self, record: Record) -> str:
        return self._dense.path_of(record)

    def close(self) -> None:
        for state in filter(None, (self._state, self._ready)):
            tables: list[MappedRows | NewerRows] = [*state.tables.values(), *state.changes.values()]
            for rows in tables:
                rows.close()
        self._place.cleanup()

    def _publication(self) -> Publication:
        publication = records.read_publication(self._url)
        if publication is None:
            raise UserError(
                f"{self._url}: there is no publication (no {records.PUBLICATION}): train with the setting publish"
            )
        return publication

    def _settle(self) -> None:
        """Applies the changes of the served record to its tables."""
        state = self._state
        for table, changes in state.changes.items():
            changes.settle(state.tables[table])
            pause()
        self._state = dataclasses.replace(state, changes={})

    def _after(self, state: _State, publication: Publication, names: list[tuple[str, int]]) -> _State:
        """Returns the newest state that can be read, or `state`; raises the error of a newer record otherwise."""
        if (publication.generation, publication.holder) != (state.record.generation, state.holder):
            _log.info("%s: generation %d is current: reading it", self._url, publication.generation)
            return self._loaded(publication)
        changes = state.changes or self._empty(state.record, NewerRows)
        newest, error = self._extended(state, names, changes)
        if newest is not state:
            return dataclasses.replace(newest, changes=changes)
        if error is None:
            return state
        if (records.newest_base(names) or 0) <= state.record.epoch:
            raise error
        _log.warning("%s; the newest base is read instead", error)
        return self._loaded(publication)

    def _loaded(self, publication: Publication) -> _State:
        """Reads the newest readable record into new tables. Returns the state after it."""
        names = records.list_records(self._url, publication.generation)
        base = records.newest_base(names)
        if base is None:
            raise UserError(f"{self._url}: generation {publication.generation} has no base: publish the model again")
        record = records.read_record(self._url, publication.generation, records.BASE, base)
        tables = self._empty(record, MappedRows)
        for entry in record.files:
            with self._checked(record, entry) as local:
                _put(record, entry, local, tables)
        state, error = self._extended(_State(publication.holder, record, tables, {}), names, tables)
        if error is not None:
            _log.warning("%s; the epochs before it are served", error)
        rows, record = sum(map(len, tables.values())), state.record
        _log.info("%s: generation %d, epoch %d: %d rows", self._url, record.generation, record.epoch, rows)
        return state

    def _extended(
        self, state: _State, names: list[tuple[str, int]], tables: Mapping[str, _Rows]
    ) -> tuple[_State, Exception | None]:
        """Applies the later epochs to tables. Returns the last state, and the error of the epoch after it or None."""
        while any(epoch > state.record.epoch for _, epoch in names):
            epoch = state.record.epoch + 1
            with contextlib.ExitStack() as stack:
                try:
                    if (records.EPOCH, epoch) not in names:
                        raise UserError(f"{self._url}: epoch {epoch} is missing, and there are later ones")
                    record = records.read_record(self._url, state.record.generation, records.EPOCH, epoch)
                    files = [stack.enter_context(self._checked(record, entry)) for entry in record.files]
                except (OSError, UserError) as error:
                    return state, error
                for entry, local in zip(record.files, files, strict=True):
                    pause()
                    _put(record, entry, local, tables)
            state = dataclasses.replace(state, record=record)
        return state, None

    def _empty(self, record: Record, kind: type[_Rows]) -> dict[str, _Rows]:
        return {name: kind(config, record.dtype, self._place.name) for name, config in record.configs().items()}

    @contextlib.contextmanager
    def _checked(self, record: Record, entry: dict[str, Any]) -> Iterator[str]:
        """Checks a file of a record, and yields its local path, which is valid within the block."""
        path = records.generation_path(self._url, record.generation) / entry["file"]
        with path.local_file() as local:
            records.check_file(local, entry, path)
            yield local

    def _fetch_dense(self, record: Record) -> None:
        directory = records.generation_path(self._url, record.generation) / record.dense
        self._dense.fetch(record, lambda name: (directory / name).blocks(_TOWER_BLOCK))


def _put(record: Record, entry: dict[str, Any], local: str, tables: Mapping[str, _Rows]) -> None:
    """Puts the rows of a file into its table, or deletes the file's removed keys from the table."""
    config, table = record.configs()[entry["table"]], tables[entry["table"]]
    if entry["kind"] == ROWS:
        for keys, values in read_rows(local, config, record.dtype):
            table.put(keys, values)
    else:
        for keys in read_removed(local, config, record.dtype):
            table.remove(keys)
