"""Delivers a publication to a directory or a store."""

import dataclasses
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.snapshot.packed_rows import ROWS, file_name, read_removed, read_rows, schema, value_array
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import arrow_file
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.records import BASE, EPOCH, Place, Publication, Record
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError

_LEAST_EPOCHS, _MOST_EPOCHS = 10, 1000
GRACE_SECONDS = 600.0


class DirectoryTarget:
    """A `Target` in a directory at a path or URL.

    Files are written before their record. If the spool is on the same disk, its files are shared and not copied. `tidy`
    merges the newest base and the epochs after it into a new base, if these are at least 10 epochs with at least as
    many bytes as the base, or at least 1,000 epochs. It removes older records and generations once readers have had
    time to finish loading them.

    Args:
      grace_secs: how long replaced records stay for readers.

    Raises:
      UserError: another process delivers there, or the place cannot be written to.
    """

    def __init__(self, url: Place, grace_secs: float = GRACE_SECONDS) -> None:
        self._url, self._path, self._grace = str(url), path_of(url), grace_secs
        self._path.mkdir(parents=True, exist_ok=True)
        self._fence = (self._path / ".lock").hold(
            lambda holder: f"{url}: {holder} publishes there now; wait until it ends, or publish to another place"
        )
        try:
            self._current = records.read_publication(url)
            self._chain, self._chain_lock = self._read_chain(), threading.Lock()
        except BaseException:
            self._fence.close()
            raise

    def newest_epoch(self, holder: str) -> int | None:
        if self._current is None or self._current.holder != holder:
            return None
        return self._chain[-1].epoch

    def deliver(self, holder: str, record: Record, directory: Path) -> None:
        begins = self._current is None or self._current.holder != holder
        if self._current is not None and not begins:
            generation = self._current.generation
        else:
            if self._chain:
                records.refuse_replacing(self._url, self._chain[-1], record, records.PUBLICATION)
            generation = records.newest_generation(self._url) + 1
        record = dataclasses.replace(record, generation=generation)
        target = records.generation_path(self._url, generation)
        for entry in record.files:
            _copy(directory / entry["file"], target / entry["file"])
        if begins or self._chain[-1].dense != record.dense:
            for entry in record.dense_files:
                _copy(directory / record.dense / entry["file"], target / record.dense / entry["file"])
        for place in {(target / entry["file"]).parent for entry in record.files}:
            place.sync()
        self._fence.check()
        records.write_record(self._url, record)
        if begins:
            if self._current is not None:
                self._remove_before(self._current.generation, record)
            self._current = Publication(generation, holder)
            records.write_publication(self._url, self._current)
        with self._chain_lock:
            self._chain = [record] if begins else [*self._chain, record]

    def tidy(self) -> None:
        if self._current is None:
            return
        base, *epochs = chain = list(self._chain)
        changed = sum(entry["bytes"] for record in epochs for entry in record.files)
        is_large = changed >= sum(entry["bytes"] for entry in base.files) and len(epochs) >= _LEAST_EPOCHS
        if is_large or len(epochs) >= _MOST_EPOCHS:
            self._fence.check()
            base = self._merge(chain)
            with self._chain_lock:
                if self._chain[0] is chain[0]:
                    self._chain = [base, *self._chain[len(chain) :]]
        base, newest = self._chain[0], self._chain[-1]
        self._remove_before(base.generation, newest)
        if self._written_at(newest) - self._written_at(base) >= self._grace * 1e9:
            records.remove_before(self._url, base)

    def close(self) -> None:
        self._fence.close()

    def _read_chain(self) -> list[Record]:
        """Returns the records of the newest base and of the epochs after it."""
        if self._current is None:
            return []
        generation = self._current.generation
        names = records.list_records(self._url, generation)
        base = records.newest_base(names)
        if base is None:
            raise UserError(
                f"{self._url}: generation {generation} has no base: remove the directory, then publish again"
            )
        chain = [records.read_record(self._url, generation, BASE, base)]
        while (EPOCH, chain[-1].epoch + 1) in names:
            chain.append(records.read_record(self._url, generation, EPOCH, chain[-1].epoch + 1))
        return chain

    def _merge(self, chain: Sequence[Record]) -> Record:
        """Writes the state after a chain as a new base. Takes 16 bytes of memory per key changed since its base."""
        last = chain[-1]
        directory, name = records.generation_path(self._url, last.generation), records.name_of(BASE, last.epoch)
        (directory / name).mkdir(parents=True, exist_ok=True)
        files = []
        for table, config in last.configs().items():
            file = f"{name}/{file_name(table, ROWS)}"
            with arrow_file(directory, file, schema(config, last.dtype, ROWS)) as writing:
                for keys, values in _merged(directory, chain, table, config):
                    writing.write([key_array(np.ascontiguousarray(keys)), value_array(np.ascontiguousarray(values))])
                files.append(dict(file=file, table=table, kind=ROWS, **writing.finish()))
        (directory / name).sync()
        record = dataclasses.replace(last, kind=BASE, files=files)
        records.write_record(self._url, record)
        return record

    def _remove_before(self, current: int, newest: Record) -> None:
        """Removes the generations before the current one, if this has been current for the grace time.

        Ages are times between two writes to this directory, by the clock of its file system or store. The clock of this
        host may differ from that clock, or may have jumped.
        """
        if self._written_at(newest) - (self._path / records.PUBLICATION).stamp()[1] >= self._grace * 1e9:
            records.remove_generations_before(self._url, current)

    def _written_at(self, record: Record) -> int:
        return (records.generation_path(self._url, record.generation) / f"{record.name}.json").stamp()[1]


def _merged(
    directory: Path, chain: Sequence[Record], table: str, config: TableConfig
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields blocks of a table's keys and values: each key once, with its newest row, and no removed key."""
    newer = Index()
    for record in reversed(chain):
        seen: list[np.ndarray] = []  # The keys of this record, which has each key only once.
        for entry in record.files:
            if entry["table"] != table:
                continue
            path = directory / entry["file"]
            with path.local_file() as local:
                records.check_file(local, entry, path)
                if entry["kind"] != ROWS:
                    seen += [keys.copy() for keys in read_removed(local, config, record.dtype)]
                    continue
                for keys, values in read_rows(local, config, record.dtype):
                    new = newer.find(np.require(keys, requirements=("C", "A"))) < 0
                    yield keys[new], values[new]
                    if record is not chain[0]:
                        seen.append(keys.copy())
        for keys in seen:
            newer.find_or_add(keys)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(source, LocalPath) and isinstance(target, LocalPath):
        target.unlink(missing_ok=True)  # A killed process may have left a shared file, which must not be overwritten.
        target.share(source)
        target.sync()
    else:
        target.copy_from(source)
