"""The rows of a table that are not in memory, in a RocksDB database on a local disk."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tqdm

from ctr_trainer.embedding.table import rocks
from ctr_trainer.settings.embedding_config import DiskSettings, parse_bytes
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Advanced, Path, bytes_and_crc32, is_local, path_of
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages.errors import UserError

# A disk answers many requests concurrently, so _READERS threads read the rows of a batch, each at least _LEAST_READ. A
# thread does not hold Python's lock while it waits.
_READERS, _LEAST_READ = 32, 16
_READ_AT_ONCE = 64  # So few rows that they are read without a queue; they left memory a moment ago.
INDEX_BYTES_PER_ROW = 2.7  # 2 of the filter; the rest, of the index of blocks, was measured with rows of 156 bytes.
_MOST_FULL_BUFFERS, _MOST_FILES, _BETWEEN_LOOKS = 1, 30, 0.005  # Of removals; files to merge; and seconds.
_FULL_BYTES = 1 << 20  # Free space of a disk that is full, but for what RocksDB is about to remove.
_MOST_FETCHED = 1 << 20  # Rows that were fetched and not taken.
_SWEPT_ROWS = 1 << 12  # Rows that `sweep` returns.
_UNREAD = b""
# The figures of a table with rows on disk: the rows that are only there, their files, the memory of their index, and
# the keys since the start that lookups asked the table for, that were sought on disk, and that were there.
STATS = ("disk_rows", "disk_bytes", "disk_index_bytes", "looked_up", "disk_reads", "disk_found")


@dataclasses.dataclass(frozen=True)
class Disk:
    """The place of the rows that do not fit into memory.

    Attributes:
      directory: a directory of a local disk. Each table makes a directory there, and the next process removes it if
        this one is killed. Other files there are not touched.
      memory: bytes of memory for the rows of all tables of this process.
    """

    directory: str
    memory: int


def status_line(name: str, now: Mapping[str, int], before: Mapping[str, int]) -> str:
    """Returns a line on the rows of a table, from its `Store.stats` now and earlier."""
    looked, sought, found = (now[key] - before.get(key, 0) for key in STATS[3:])
    share = max(1 - found / max(looked, 1), 0)  # Reads of earlier lookups may end after `before`.
    return (
        f"[RunStatus]: {name} => rows in memory: {now['rows'] - now['disk_rows']:,}  on disk: {now['disk_rows']:,} "
        f"({now['disk_bytes'] / 1e6:,.1f} MB, index {now['disk_index_bytes'] / 1e6:,.1f} MB)  looked up: {looked:,}  "
        f"in memory: {share:.1%}  reads: {sought:,}  found: {found:,}"
    )


def disk_of(config: DiskSettings, model_dir: str | os.PathLike) -> Disk | None:
    """Returns the place of the rows that do not fit into memory; None if all of them have to."""
    if not (memory := parse_bytes(config.table_memory)):
        return None
    # Not in the local directory of a job in a store, whose files are uploaded, and which its next process empties.
    default = path_of(model_dir) / "rows" if is_local(model_dir) else tempfile.gettempdir()
    return Disk(config.table_dir or str(default), memory)


@dataclasses.dataclass(frozen=True)
class LinkedRows:
    """The files of a table's rows on disk at one moment, in `directory`.

    Attributes:
      rows: the number of rows that are only there.
      saved: where the last snapshot has the files of rows, by their names.
    """

    directory: LocalPath
    rows: int
    saved: dict[str, Path]

    def files(self) -> Iterator[tuple[LocalPath, int, int]]:
        """Yields (file, its bytes, their CRC-32); of a file of rows, only that of its end, which tells files apart."""
        for name in self.directory.files():
            file = self.directory / name
            yield file, *(rocks.bytes_and_end if name.endswith(rocks.ROWS_FILE) else bytes_and_crc32)(file)


class ColdRows:
    """Rows by key on disk, with the last step and the frequency of their training, see `RowUsage`.

    A row that a table took is out of date here until it is written or removed. So ask only for keys that the table does
    not have. Nothing here outlives the process: a snapshot links the files, see `linked`.

    Threads: any thread may call `fetch` and `stats` while another one uses the other methods. A thread of its own
    writes rows to the database; an error of it is raised by the next call that needs its end.

    Attributes:
      count: the number of keys that are only here.
      looked_up: the number of keys that lookups asked the table for since the start.
      reads: the number of keys that were looked for on disk since the start.
      found: the number of these keys that were there.
    """

    def __init__(self, disk: Disk, row_bytes: int) -> None:
        """Makes an empty database in a new directory.

        Raises UserError: the package rocksdict is missing, or the directory cannot be used.
        """
        self._row_bytes, self._place = row_bytes, disk.directory
        self._stack = contextlib.ExitStack()
        try:
            os.makedirs(disk.directory, exist_ok=True)
            self._directory = LocalPath(self._stack.enter_context(temporary_directory(disk.directory)))
        except OSError as error:
            raise UserError(f"table_dir={disk.directory}: {error.strerror}; name a directory of a local disk") from None
        self._readers = concurrent.futures.ThreadPoolExecutor(_READERS, "cold rows")
        self._stack.callback(self._readers.shutdown)
        self._writer = concurrent.futures.ThreadPoolExecutor(1, "cold rows written")
        self._stack.callback(self._writer.shutdown)
        self._writing: concurrent.futures.Future[None] | None = None
        self._leaving = self._nothing = np.empty(0, np.uint64), np.empty((0, row_bytes + 8), np.uint8)  # See `_write`.
        self._guard, self._fetched = threading.Lock(), dict[int, bytes | None]()  # None for a key that is not here.
        # For each running `fetch` of the present rows, the `ordered` keys written meanwhile.
        self._written = list[list[np.ndarray]]()
        self._saved, self._links = dict[str, Path](), 0
        self.count = self.looked_up = self.reads = self.found = 0
        self._db: Any = None
        self._swept = b""  # The key after which `sweep` continues.
        self._open()

    def fetch(self, keys: np.ndarray) -> None:
        """Reads the rows of keys, int64[n], that a later `read` then finds without a wait for the disk."""
        if not self.count:
            return
        written, values = list[np.ndarray](), list[bytes | None]()
        with self._guard:
            known = np.fromiter(map(self._fetched.__contains__, keys.tolist()), np.bool_, len(keys))
            self._written.append(written)
        wanted = keys[~known]
        try:
            values = self._read(wanted)
        finally:
            new = dict(zip(wanted.tolist(), values, strict=False))
            with self._guard:
                if all(each is not written for each in self._written):
                    new.clear()  # `restore` has replaced the rows meanwhile.
                self._written = [each for each in self._written if each is not written]
                for order in written:
                    for key in wanted[_places(order, wanted) >= 0].tolist():
                        new.pop(key, None)
                self._fetched |= new
                for key in list(itertools.islice(self._fetched, max(len(self._fetched) - _MOST_FETCHED, 0))):
                    del self._fetched[key]

    def read(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (positions int64[n] of the keys that are here, rows uint8[n, row_bytes], use uint32[2, n]).

        `keys` are distinct, int64[U]. If the caller has these rows from now on, it subtracts their number from `count`.
        """
        if not self.count:
            return self._unpacked([])
        asked = keys.tolist()
        with self._guard:
            values = [*map(self._fetched.pop, asked, itertools.repeat(_UNREAD))]
        missing = [at for at, value in enumerate(values) if value is _UNREAD]
        for at, value in zip(missing, self._read(keys[missing]), strict=True):
            values[at] = value
        return self._unpacked(values)

    def write(self, keys: np.ndarray, rows: np.ndarray, use: np.ndarray) -> None:
        """Writes rows, uint8[n, row_bytes], with their use, uint32[2, n]; from now on they are only here."""
        if not len(keys):
            return
        order = rocks.ordered(keys)
        by_order = np.argsort(order)
        order = order[by_order]
        packed = np.empty((len(keys), self._row_bytes + 8), np.uint8)
        packed[:, : self._row_bytes] = rows[by_order]
        packed[:, self._row_bytes :] = np.ascontiguousarray(use.T[by_order]).view(np.uint8)
        self._finish_writing()
        self._leaving = order, packed
        self._drop(order)
        self._writing = self._writer.submit(self._write)
        self.count += len(keys)

    def remove(self, keys: np.ndarray) -> np.ndarray:
        """Removes keys, int64[n], that the table does not have; returns those that were here."""
        there = keys[self.read(keys)[0]]
        self.forget(there)
        self.count -= len(there)
        return there

    def forget(self, keys: np.ndarray) -> None:
        """Removes what is here of rows that the caller has, int64[n] keys, and that it is about to remove."""
        if not len(keys):
            return
        self._finish_writing()
        batch, names = self._rocksdict.WriteBatch(raw_mode=True), keys.tobytes()
        for at in range(len(keys)):
            batch.delete(names[8 * at : 8 * at + 8])
        with rocks.told(self._place):
            self._wait_for_files()
            self._db.write(batch)
        self._drop(np.sort(rocks.ordered(keys)))

    def clear(self) -> None:
        """Removes all rows."""
        self.restore({}, 0)

    @contextlib.contextmanager
    def linked(self) -> Iterator[LinkedRows]:
        """Yields links to the files of all rows in their present state; removes the links at the end of the block."""
        self._finish_writing()
        self._links += 1
        path = self._directory / f"snapshot-{self._links}"
        with rocks.told(self._place):
            self._rocksdict.Checkpoint(self._db).create_checkpoint(str(path))
        try:
            yield LinkedRows(path, self.count, self._saved)
        finally:
            path.remove_all()

    def restore(self, files: Mapping[str, Path], count: int, advanced: Advanced = lambda text: None) -> None:
        """Replaces all rows by those of linked files, by their names in the database; `count` is their number.

        Files on the same file system are linked, not read; a progress bar shows a copy that takes more than a second.
        """
        self._close()
        with self._guard:
            self._fetched.clear()
            self._written = []
        self._saved = {name: file for name, file in files.items() if name.endswith(rocks.ROWS_FILE)}
        path = self._directory / "rows"
        path.remove_all()
        path.mkdir()
        with rocks.told(self._place):
            hidden = not sys.stderr.isatty()
            for name, file in tqdm.tqdm(files.items(), "copying rows", unit=" files", delay=1, disable=hidden):
                if name in self._saved:
                    (path / name).share(file, advanced)
                else:
                    (path / name).copy_from(file)  # RocksDB changes it.
        self.count = count
        self._open()

    def read_blocks(self, keys: np.ndarray | None = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yields (keys int64[n], rows uint8[n, row_bytes]), of int64[m] keys or of all, those out of date too."""
        if keys is None:
            self._finish_writing()
            with rocks.told(self._place):
                for own, packed in rocks.blocks(self._db):
                    yield own, packed[:, : self._row_bytes]
            return
        for at in range(0, len(keys), rocks.BLOCK_ROWS):
            asked = keys[at : at + rocks.BLOCK_ROWS]
            there, rows, _ = self._unpacked(self._read(asked))
            yield asked[there], rows

    def sweep(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the keys, int64[n], rows and use of the next block of all, and none once at the end of each sweep."""
        self._finish_writing()
        with rocks.told(self._place):
            nothing = np.empty(0, np.int64), np.empty((0, self._row_bytes + 8), np.uint8)
            keys, packed = next(rocks.blocks(self._db, self._swept, _SWEPT_ROWS), nothing)
        self._swept = keys[-1:].tobytes() + b"\0" if len(keys) else b""
        return keys, *self._split(packed)

    def stats(self) -> dict[str, int]:
        """Returns the names and values of `STATS`."""
        with self._guard:
            files, index = (
                (self._db.property_int_value(f"rocksdb.{name}") or 0) if self._db is not None else 0
                for name in ("live-sst-files-size", "estimate-table-readers-mem")
            )
        return dict(zip(STATS, (self.count, files, index, self.looked_up, self.reads, self.found), strict=True))

    def close(self) -> None:
        """Removes the rows."""
        self._close()
        self._stack.close()

    def _close(self) -> None:
        with contextlib.suppress(UserError):
            self._finish_writing()
        self._writing, self._leaving = None, self._nothing
        with self._guard:
            database, self._db = self._db, None  # What is open would keep the files.
        with contextlib.suppress(Exception):  # It first writes the rows to a file, for which the disk may be too full.
            database.close()

    def _open(self) -> None:
        self._rocksdict = rocks.rocksdict()
        self._failures = 0  # Of this database in the background, when there were few files last.
        with rocks.told(self._place):
            self._options = rocks.options(self._rocksdict, rocks.is_direct(self._directory))
            self._db = rocks.opened(self._directory / "rows", self._options)
            writing = self._rocksdict.WriteOptions()
            writing.disable_wal = True  # After a kill, a training resumes from a checkpoint.
            self._db.set_write_options(writing)

    def _drop(self, order: np.ndarray) -> None:
        """Drops what running and past calls of `fetch` have read of sorted `ordered` keys, whose rows changed since."""
        with self._guard:
            for each in self._written:
                each.append(order)
            fetched = np.fromiter(self._fetched, np.int64, len(self._fetched))
            for key in fetched[_places(order, fetched) >= 0].tolist():
                del self._fetched[key]

    def _write(self) -> None:
        """Writes the rows of `_leaving`, (uint64[n] `ordered` keys, uint8[n, row_bytes + 8]), to a file."""
        file = str(self._directory / f"leaving{rocks.ROWS_FILE}")
        with rocks.told(self._place):
            rocks.write_file(file, self._options, *self._leaving)
            self._wait_for_files()
            rocks.move_files(self._db, [file])
        self._leaving = self._nothing

    def _finish_writing(self) -> None:
        """Waits until all rows are in the database; raises UserError if they could not be written."""
        if self._writing is not None:
            self._writing.result()

    def _wait_for_files(self) -> None:
        """Waits while many rows are not yet in files, or many files not yet merged."""
        # RocksDB itself would wait for ever, and with Python's lock, if it cannot write a file.
        names = [f"rocksdb.{name}" for name in ("num-immutable-mem-table", "num-files-at-level0", "background-errors")]
        while True:
            buffers, files, failures = (int(self._db.property_value(name)) for name in names)
            if buffers <= _MOST_FULL_BUFFERS and files <= _MOST_FILES:
                self._failures = failures
                return
            if failures > self._failures:
                log = (self._directory / "rows" / "LOG").read_text(errors="replace")
                why = re.findall(r"background \w+ error: (.+?)[: ]*, Accumulated", log)
                if not why:  # RocksDB counts an error before it logs it, for which a full disk may have no space.
                    is_full = shutil.disk_usage(self._directory).free < _FULL_BYTES
                    why = ["No space left on device" if is_full else "see LOG there"]
                raise Exception(f"its files cannot be written: {why[-1]}")
            time.sleep(_BETWEEN_LOOKS)

    def _read(self, keys: np.ndarray) -> list[bytes | None]:
        """Returns the value of each key on disk or on its way there, None for a key that is not there."""
        order, packed = self._leaving
        places = _places(order, keys)
        if (places < 0).all():
            return self._read_database(keys)
        values = iter(self._read_database(keys[places < 0]))
        return [packed[at].tobytes() if at >= 0 else next(values) for at in places.tolist()]

    def _read_database(self, keys: np.ndarray) -> list[bytes | None]:
        names = keys.tobytes()
        is_queued = len(keys) > _READ_AT_ONCE
        size = max(-(-len(keys) // _READERS), _LEAST_READ) if is_queued else _READ_AT_ONCE
        parts = [
            [names[8 * at : 8 * at + 8] for at in range(first, min(first + size, len(keys)))]
            for first in range(0, len(keys), size)
        ]
        with rocks.told(self._place):
            answers = (self._readers.map if is_queued else map)(self._db.get, parts)
            values = [*itertools.chain.from_iterable(answers)]
        with self._guard:
            self.reads += len(values)
            self.found += len(values) - values.count(None)
        return values

    def _unpacked(self, values: Sequence[bytes | None]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns (the positions of the values that are there, their rows, their use)."""
        positions = np.flatnonzero(np.fromiter(map(bool, values), np.bool_, len(values)))
        packed = np.frombuffer(b"".join(filter(None, values)), np.uint8).reshape(len(positions), self._row_bytes + 8)
        return positions, *self._split(packed)

    def _split(self, packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns (rows, use) of uint8[n, row_bytes + 8]."""
        use = np.ascontiguousarray(packed[:, self._row_bytes :]).view(np.uint32)
        return packed[:, : self._row_bytes], use.T


def _places(order: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Returns int64[n], the places of the keys in sorted `ordered` keys, uint64[m]; -1 for other keys."""
    wanted = rocks.ordered(keys)
    places = np.searchsorted(order, wanted)
    places[places == len(order)] = -1
    return np.where(order[places] == wanted, places, -1) if len(order) else places
