"""The publication that a training writes, from which a delivery takes it."""

import dataclasses
import time
import uuid

from ctr_trainer.files.paths import bytes_and_crc32, path_of
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication import records
from ctr_trainer.publication.records import BASE, EPOCH, Publication, Record

_FILE = "delivered.json"
DIRECTORY = "publication"  # Below the model directory.


class NeedsBase(UserError):
    """No epoch can follow what the target has: it takes a new generation, which begins with all rows."""


@dataclasses.dataclass(frozen=True)
class DeliveryStatus:
    """The last record that was delivered, and what is wrong since.

    Attributes:
      holder: of the generation.
      epoch: of the record; -1 if none of this generation was delivered yet.
      time: seconds since 1970, at which it was delivered.
      problem: why the next record is not delivered; "" if nothing is wrong.
      needs_base: whether no epoch can follow at the target, so that the training has to begin a new generation.
    """

    holder: str
    epoch: int = -1
    time: float = 0.0
    problem: str = ""
    needs_base: bool = False


def read_status(spool):
    """-> the `DeliveryStatus` of a spool; None if no delivery has looked at it yet."""
    path = path_of(spool) / _FILE
    if not path.exists():
        return None
    values = path.read_json("end the training and start it again")
    try:
        return DeliveryStatus(**values)
    except TypeError as error:
        raise UserError(f"{path}: is not of this version of ctr_trainer: {error}") from None


def write_status(spool, delivered):
    """Replaces the `DeliveryStatus` of a spool."""
    (path_of(spool) / _FILE).write_json(dataclasses.asdict(delivered))


class Spool:
    """Writes one record after the other: a base, then epochs.

    What a killed process leaves here is whole up to its last record. The next training begins a new generation.

    Args:
      path: path or URL of its directory; the store's shards have to see it as this process does.
      model: name of the model.
      store: `Store` of the rows.
      configs: list of the TableConfig of each table.
      dtype: of the packed rows.

    Attributes:
      path: the `Path`.
      last: the last `Record` of this generation; None before its base is written.
      records, rows, removed: how many of each were written, by all generations of this object.
    """

    def __init__(self, path, model, store, configs, dtype):
        self.path = path_of(path).absolute()
        self._model, self._store, self._dtype = model, store, dtype
        self._tables = [{"config": config.to_dict()} for config in configs]
        self._publication, self.last, self._is_closed = None, None, False
        self.records = self.rows = self.removed = 0

    def begin(self):
        """Begins a new generation with the next record, which has all rows."""
        before = records.read_publication(self.path)
        number = max(before.generation if before else 0, records.newest_generation(self.path)) + 1
        self._publication, self.last = Publication(self._model, number, uuid.uuid4().hex), None

    def write(self, step, write_tower=None):
        """Writes the next record, with the rows that have changed since the last one.

        If this raises, the next call writes the same record, with what was to be in it; if it is not known whether the
        record was written, it begins a new generation.

        Args:
          step: the global step of the dense tower.
          write_tower: f(local directory), writes the SavedModel of the dense tower; None to name the one before.

        Returns:
          the `Record`.

        Raises:
          UserError, OSError: it cannot be written.
        """
        if self._publication is None:
            self.begin()
        kind, epoch = (EPOCH, self.last.epoch + 1) if self.last else (BASE, 0)
        name, now = records.name_of(kind, epoch), time.time()
        directory = records.generation_path(self.path, self._publication.generation)
        (directory / name).remove_all()
        files = self._store.publish(str(directory / name), epoch, self._dtype, self.last and self.last.epoch)
        files = [{**entry, "file": f"{name}/{entry['file']}"} for entry in files]
        dense = dict(dense=self.last.dense, dense_files=self.last.dense_files) if self.last else {}
        if write_tower or not dense:
            dense = _write_tower(directory, records.dense_name(epoch), write_tower)
        of = dict(model=self._model, generation=self._publication.generation, epoch=epoch, kind=kind)
        record = Record(**of, global_step=step, time=now, dtype=self._dtype, tables=self._tables, files=files, **dense)
        if self._is_closed:
            raise UserError(f"{self.path}: the rows of {name} may be of a store that is closed")
        try:
            records.write_record(self.path, record)
            if kind == BASE:
                records.write_publication(self.path, self._publication)
        except Exception:
            # It may be delivered by now, so no other record may take its number.
            if (directory / f"{name}.json").exists():
                self.begin()
            raise
        self.last, self.records = record, self.records + 1
        self.rows, self.removed = self.rows + record.rows, self.removed + record.removed
        if kind == BASE:
            records.remove_generations_before(self.path, record.generation)
        return record

    def close(self):
        """Has no record written from now on, also by a thread that is about to: its rows may be given back."""
        self._is_closed = True

    def status(self):
        """-> the `DeliveryStatus` of this generation; None if no delivery has said anything of it yet."""
        delivered = read_status(self.path)
        is_own = delivered and self._publication and delivered.holder == self._publication.holder
        return delivered if is_own else None


def _write_tower(directory, name, write_tower):
    """-> `dense` and `dense_files` of a record."""
    path = directory / name
    path.remove_all()
    path.mkdir(parents=True, exist_ok=True)
    with path.filled_locally() as local:
        write_tower(str(local))
    files = path.files()
    entries = []
    for file in files:
        (path / file).sync()
        size, crc32 = bytes_and_crc32(path / file)
        entries.append({"file": file, "bytes": size, "crc32": crc32})
    return dict(dense=name, dense_files=entries)
