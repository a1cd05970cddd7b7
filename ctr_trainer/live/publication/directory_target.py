"""Delivers a publication to a directory or a store."""

import dataclasses
import os
from collections.abc import Iterator, Sequence

import numpy as np

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.snapshot.packed_rows import ROWS, file_name, read_removed, read_rows, schema, value_array
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import arrow_file
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.records import BASE, EPOCH, Place, Record
from ctr_trainer.live.publication.spool import NeedsBase
from ctr_trainer.settings.training_configs import GRACE_SECONDS
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Path, path_of

_LEAST_EPOCHS, _MOST_EPOCHS, _LEAST_SIZE = 10, 1000, 2  # The size is that of the epochs over that of the base.


class DirectoryTarget:
    """A `Target` in a directory at a path or URL.

    Files are written before their record. If the spool is on the same disk, its files are shared and not copied. `tidy`
    merges the newest base and the epochs after it into a new base, if these are at least 10 epochs with at least twice
    as many bytes as the base, or at least 1,000 epochs. It removes the records and generations before a base once
    readers have had time to finish loading them.

    `grace_secs`: how long replaced records stay for readers.

    Raises UserError: another process delivers there, or the place cannot be written to.
    """

    def __init__(self, url: Place, grace_secs: float = GRACE_SECONDS) -> None:
        self._url, self._path, self._grace = str(url), path_of(url), grace_secs
        self._begun = "", 0  # The holder of the last base, and its generation, which a retry writes again.
        self._path.mkdir(parents=True, exist_ok=True)
        self._fence = (self._path / ".lock").hold(
            lambda holder: f"{url}: {holder} publishes there now; wait until it ends, or publish to another place"
        )
        try:
            self._chain = self._read_chain()
        except BaseException:
            self._fence.close()
            raise

    def newest_epoch(self, holder: str) -> int | None:
        return self._chain[-1].epoch if self._chain and self._chain[-1].holder == holder else None

    def deliver(self, record: Record, directory: Path) -> None:
        begins = self.newest_epoch(record.holder) is None
        for known in () if begins else (self._chain[0], self._chain[-1]):
            path = records.record_path(self._url, known.generation, known.kind, known.epoch)
            if not path.exists():
                raise NeedsBase(f"{path} is gone: all rows must be published again")
        if begins and self._chain:
            records.refuse_replacing(self._url, self._chain[-1], record, "its directories generation-*")
        if begins and self._begun[0] != record.holder:
            self._begun = record.holder, records.next_generation(self._url)
        generation = self._begun[1] if begins else self._chain[-1].generation
        record = dataclasses.replace(record, generation=generation)
        target = records.generation_path(self._url, generation)
        files = [entry["file"] for entry in record.files]
        files += [os.path.join(record.dense, entry["file"]) for entry in record.dense_files]
        for file in files:
            _copy(directory / file, target / file)
        for place in {(target / file).parent for file in files}:
            place.sync()
        self._fence.check()
        records.write_record(self._url, record)
        if begins:
            self._chain = [record]
            self._remove_old(record)
        else:
            self._chain.append(record)

    def tidy(self) -> None:
        chain = self._chain  # `deliver` appends to this list in another thread, or begins another one.
        if not chain:
            return
        base, *epochs = merged = list(chain)
        changed = sum(entry["bytes"] for record in epochs for entry in record.files)
        is_large = changed >= _LEAST_SIZE * sum(entry["bytes"] for entry in base.files) and len(epochs) >= _LEAST_EPOCHS
        if is_large or len(epochs) >= _MOST_EPOCHS:
            self._fence.check()
            chain[: len(merged)] = [self._merge(merged)]
        self._remove_old(self._chain[-1])

    def close(self) -> None:
        self._fence.close()

    def _read_chain(self) -> list[Record]:
        """Returns the records of the newest base and of the epochs after it."""
        generation, names = records.find_current(self._url)
        base = records.newest_base(names)
        if base is None:  # There is no publication, or it has lost its base.
            return []
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
        try:
            for table, config in last.configs().items():
                file = f"{name}/{file_name(table, ROWS)}"
                with arrow_file(directory, file, schema(config, last.dtype, ROWS)) as writing:
                    for keys, values in _merged(directory, chain, table, config):
                        writing.write(
                            [key_array(np.ascontiguousarray(keys)), value_array(np.ascontiguousarray(values))]
                        )
                    files.append(dict(file=file, table=table, kind=ROWS, **writing.finish()))
            (directory / name).sync()
            record = dataclasses.replace(last, kind=BASE, files=files)
            records.write_record(self._url, record)
        except BaseException:
            if not records.record_path(self._url, last.generation, BASE, last.epoch).exists():
                (directory / name).remove_all()  # The next merge has more epochs, so it writes to another directory.
            raise
        return record

    def _remove_old(self, newest: Record) -> None:
        """Removes all before the last base that was written at least the grace time before the newest record."""
        # Both times are by the clock of the file system or store. The clock of this host may differ, or have jumped.
        _, written = records.record_path(self._url, newest.generation, newest.kind, newest.epoch).stamp()
        for generation, _ in reversed(records.list_generations(self._url)):
            for kind, epoch in reversed(records.list_records(self._url, generation)):
                path = records.record_path(self._url, generation, kind, epoch)
                if kind == BASE and path.stamp()[1] <= written - int(self._grace * 1e9):
                    records.remove_generations_before(self._url, generation)
                    records.remove_before(self._url, generation, kind, epoch)
                    return


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
        target.share(source)  # The spool's files are on the disk already.
    else:
        target.copy_from(source)
