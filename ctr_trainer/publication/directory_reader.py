"""Reads a publication in a directory or a store: its rows lie in a file of this host that is mapped into memory."""

import dataclasses
import logging
import tempfile
import time

from ctr_trainer.embedding.snapshot.packed_files import ROWS, read_removed, read_rows
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication import records
from ctr_trainer.publication.dense_files import DenseFiles
from ctr_trainer.publication.mapped_rows import MappedRows

_log = logging.getLogger(__name__)
_TOWER_BLOCK = 4 << 20


@dataclasses.dataclass(frozen=True)
class _State:
    """What is served: a record, and the rows of each table by its name."""

    record: records.Record
    tables: dict


class DirectoryReader:
    """A `RowReader` of a directory, or of its URL.

    It begins with the newest base and applies the epochs after it in order, each once its files were checked. While an
    epoch is applied, a read gives some rows before it and some after. If an epoch is missing or damaged, or if another
    generation has become the current one, a second table is filled from the newest base beside the one that is served.

    Args:
      url: path or URL of the publication.
      cache_dir: where the rows and towers lie on this host; "" for the system's directory of temporary files.

    Raises:
      UserError: there is no publication, or it cannot be read.
    """

    lookups = hits = 0
    lost = ""  # Its files are on this host.

    def __init__(self, url, cache_dir=""):
        self._url = str(url)
        self._place = tempfile.TemporaryDirectory(prefix="ctr_trainer-rows-", dir=cache_dir or None)
        self._dense = DenseFiles(self._place.name)
        self._ready = self._state = None
        try:
            self._state = self._newest()
        except BaseException:
            self._place.cleanup()
            raise

    @property
    def record(self):
        return self._state.record

    def refresh(self):
        if self._ready is None:
            self._ready = self._next()
        return self._ready and self._ready.record

    def advance(self):
        if self._ready is not None:
            self._state, self._ready = self._ready, None

    def read(self, table, keys):
        tables = self._state.tables
        if table not in tables:
            raise UserError(f"{self._url}: no table {table}; there are {', '.join(tables)}")
        return tables[table].read(keys)

    def dense_path(self, record=None):
        return self._dense.path_of(record or self.record)

    def age_secs(self):
        return max(time.time() - self.record.time, 0.0)

    def close(self):
        for state in filter(None, (self._state, self._ready)):
            for table in state.tables.values():
                table.close()
        self._place.cleanup()

    def _next(self):
        """-> the `_State` after the served one; None if there is none."""
        served = self.record
        publication = records.read_publication(self._url)
        if publication is None:
            raise UserError(f"{self._url}: the publication is gone; what was read of it is served on")
        if publication.generation != served.generation:
            _log.info("%s: generation %d is current: reading it", self._url, publication.generation)
            return self._newest()
        names = records.list_records(self._url, served.generation)
        if not any(epoch > served.epoch for _, epoch in names):
            return None
        try:
            if (records.EPOCH, served.epoch + 1) not in names:
                raise UserError(f"{self._url}: epoch {served.epoch + 1} is missing, and there are later ones")
            return self._applied(served.epoch + 1)
        except (OSError, UserError) as error:
            if records.newest_base(names) <= served.epoch:
                raise
            _log.warning("%s; going on from the newest base", error)
        return self._newest()

    def _applied(self, epoch):
        """-> the `_State` with one more epoch, which is applied to the tables that are served."""
        record = records.read_record(self._url, self.record.generation, records.EPOCH, epoch)
        if record.configs() != self.record.configs() or record.dtype != self.record.dtype:
            raise UserError(
                f"{self._url}: epoch {epoch} has other tables than the epoch before: publish the model anew"
            )
        self._fetch_dense(record)
        self._apply(record, self._state.tables)
        return _State(record, self._state.tables)

    def _newest(self):
        """-> the `_State` of the newest record of the current generation, in tables of its own."""
        publication = records.read_publication(self._url)
        if publication is None:
            raise UserError(f"{self._url}: there is no publication (no {records.PUBLICATION}): train with --publish")
        names = records.list_records(self._url, publication.generation)
        base = records.newest_base(names)
        if base is None:
            raise UserError(f"{self._url}: generation {publication.generation} has no base: publish the model again")
        record = records.read_record(self._url, publication.generation, records.BASE, base)
        configs = record.configs()
        tables = {name: MappedRows(config, record.dtype, self._place.name) for name, config in configs.items()}
        self._apply(record, tables)
        while (records.EPOCH, record.epoch + 1) in names:
            record = records.read_record(self._url, publication.generation, records.EPOCH, record.epoch + 1)
            self._apply(record, tables)
        self._fetch_dense(record)
        rows = sum(map(len, tables.values()))
        _log.info("%s: generation %d, epoch %d: %d rows", self._url, record.generation, record.epoch, rows)
        return _State(record, tables)

    def _apply(self, record, tables):
        """Checks each file of a record, then puts its rows into the tables and removes its removed keys."""
        configs, directory = record.configs(), records.generation_path(self._url, record.generation)
        for entry in record.files:
            table, path = entry["table"], directory / entry["file"]
            with path.local_file() as local:
                records.check_file(local, entry, path)
                if entry["kind"] == ROWS:
                    for keys, values in read_rows(local, configs[table], record.dtype):
                        tables[table].put(keys, values)
                else:
                    for keys in read_removed(local, configs[table], record.dtype):
                        tables[table].remove(keys)

    def _fetch_dense(self, record):
        directory = records.generation_path(self._url, record.generation) / record.dense
        self._dense.fetch(record, lambda name: (directory / name).blocks(_TOWER_BLOCK))
