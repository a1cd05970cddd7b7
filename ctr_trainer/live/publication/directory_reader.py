"""Reads a publication from a directory or a store into memory-mapped files on this host."""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ctr_trainer.embedding.snapshot.packed_rows import ROWS, read_removed, read_rows
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.reading import MappedRows, NewerRows, pause
from ctr_trainer.live.publication.records import Record
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_RETRY_SECONDS = 30.0  # A damaged file is read again after this time, or once there is a newer record.


@dataclasses.dataclass(frozen=True)
class _State:
    """The rows of each table after a record is applied."""

    record: Record
    tables: Mapping[str, MappedRows]


class DirectoryReader:
    """A `RowReader` of a directory at a path or URL.

    It loads the newest base, and applies the later epochs in order after it has checked their files. The changes of
    later epochs stay separate from the served rows until `advance` makes them visible together. If an epoch is missing
    or damaged, or if another generation becomes the current one, new tables are filled from the newest base while the
    earlier tables are served.

    Raises UserError: there is no publication, or it cannot be read.
    """

    is_local = True
    lookups = hits = 0
    unreadable = ""

    def __init__(self, url: str) -> None:
        self._url = url
        self._failed: tuple[object, Exception, float] | None = None  # (contents, error, time before the next try).
        self._ready: _State | None = None  # The newest state, whose rows are read.
        self._state = self._loaded(*self._current())

    @property
    def record(self) -> Record:
        return self._state.record

    def await_newer(self, seconds: float, ended: threading.Event) -> bool:
        return records.await_record(self._next, seconds, ended)

    def refresh(self) -> Record | None:
        self._state = dataclasses.replace(self._state, tables=dict(self._settled()))
        generation, names = self._current()
        pause()
        if self._failed and self._failed[0] == (generation, names) and time.monotonic() < self._failed[2]:
            raise self._failed[1].with_traceback(None)
        last, self._ready = self._ready or self._state, None  # After an error, its changes may have rows of an epoch.
        try:
            newest = self._after(last, generation, names)
        except (UserError, OSError) as error:
            self._failed = (generation, names), error, time.monotonic() + _RETRY_SECONDS
            raise
        self._failed = None
        if newest is not self._state:
            self._ready = newest
        return self._ready.record if self._ready else None

    def advance(self) -> None:
        if self._ready is not None:
            self._state, self._ready = self._ready, None

    def read(self, table: str, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self._state.tables[table].find(keys)

    @contextlib.contextmanager
    def tower(self, record: Record) -> Iterator[str]:
        directory = records.generation_path(self._url, record.generation) / record.dense
        with directory.local_files(entry["file"] for entry in record.dense_files) as local:
            for entry in record.dense_files:
                pause()
                records.check_file(local / entry["file"], entry, directory / entry["file"])
            yield str(local)

    def close(self) -> None:
        for state in filter(None, (self._state, self._ready)):
            for rows in state.tables.values():
                rows.close()

    def _current(self) -> tuple[int, list[tuple[str, int]]]:
        generation, names = records.find_current(self._url)
        if not names:
            raise UserError(f"{self._url}: there is no publication: train with the setting publish")
        self._next = records.record_path(self._url, generation, records.EPOCH, names[-1][1] + 1)
        return generation, names

    def _settled(self) -> Iterator[tuple[str, MappedRows]]:
        """Yields the served tables with their changes applied."""
        for table, rows in self._state.tables.items():
            yield table, rows.settled()
            pause()

    def _after(self, state: _State, generation: int, names: list[tuple[str, int]]) -> _State:
        """Returns the newest state that can be read, or `state`; raises the error of a newer record otherwise."""
        # A place that was emptied and filled again may reuse the number of a generation.
        found, served = records.read_record(self._url, generation, *names[-1]), state.record
        if (found.generation, found.holder) != (served.generation, served.holder):
            _log.info("%s: generation %d is current: reading it", self._url, generation)
            return self._loaded(generation, names)
        first = state
        if state is self._state:  # Batches read its tables, so changes are kept apart from them.
            first = _State(state.record, {name: NewerRows(rows) for name, rows in state.tables.items()})
        newest, error = self._extended(first, names)
        if newest is not first:
            return newest
        if error is None:
            return state
        if (records.newest_base(names) or 0) <= state.record.epoch:
            raise error
        _log.warning("%s; the newest base is read instead", error)
        return self._loaded(generation, names)

    def _loaded(self, generation: int, names: list[tuple[str, int]]) -> _State:
        """Reads the newest readable record into new tables. Returns the state after it."""
        record = records.read_record(self._url, generation, records.BASE, records.newest_base(names) or 0)
        tables = {name: MappedRows(config, record.dtype) for name, config in record.configs().items()}
        for entry in record.files:
            with self._checked(record, entry) as local:
                _put(record, entry, local, tables)
        state, error = self._extended(_State(record, tables), names)
        if error is not None:
            _log.warning("%s; the epochs before it are served", error)
        rows, record = sum(map(len, tables.values())), state.record
        _log.info("%s: generation %d, epoch %d: %d rows", self._url, record.generation, record.epoch, rows)
        return state

    def _extended(self, state: _State, names: list[tuple[str, int]]) -> tuple[_State, Exception | None]:
        """Applies the later epochs to its tables. Returns the last state, and the error of the next epoch or None."""
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
                    _put(record, entry, local, state.tables)
            state = dataclasses.replace(state, record=record)
        return state, None

    @contextlib.contextmanager
    def _checked(self, record: Record, entry: dict[str, Any]) -> Iterator[str]:
        """Checks a file of a record, and yields its local path, which is valid within the block."""
        path = records.generation_path(self._url, record.generation) / entry["file"]
        with path.local_file() as local:
            records.check_file(local, entry, path)
            yield local


def _put(record: Record, entry: dict[str, Any], local: str, tables: Mapping[str, MappedRows]) -> None:
    """Puts the rows of a file into its table, or deletes the file's removed keys from the table."""
    config, table = record.configs()[entry["table"]], tables[entry["table"]]
    if entry["kind"] == ROWS:
        for keys, values in read_rows(local, config, record.dtype):
            table.put(keys, values)
    else:
        for keys in read_removed(local, config, record.dtype):
            table.remove(keys)
