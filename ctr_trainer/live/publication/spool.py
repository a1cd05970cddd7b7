"""The spool: the publication that a training writes into its model directory, from which it is delivered."""

import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ctr_trainer.checkpoint.checkpoint import describe_file
from ctr_trainer.embedding.snapshot.packed_rows import exact_dtype
from ctr_trainer.embedding.store.store import FileEntry
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.records import BASE, EPOCH, Place, Record
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError

_FILE = "delivered.json"
_LOOK_SECONDS, _STORE_LOOK_SECONDS = 0.01, 0.2
DIRECTORY = "publication"  # Below the model directory.
PublishRows = Callable[[str, int, str, int | None], list[FileEntry]]


class NeedsBase(UserError):
    """No epoch can follow the target's last record: a new generation is needed, which begins with all rows."""


@dataclasses.dataclass(frozen=True)
class DeliveryStatus:
    """A delivery's report to the training: the last delivered record, and the problem since then.

    Attributes:
      generation: the generation's number in the spool.
      epoch: the epoch of the record; -1 if no record of this generation was delivered yet.
      problem: why the next record is not delivered; "" if there is no problem.
      needs_base: whether the training must begin a new generation, because no epoch can follow at the target.
    """

    generation: int
    epoch: int = -1
    problem: str = ""
    needs_base: bool = False


def read_status(spool: Place) -> DeliveryStatus | None:
    """Returns the delivery status of a spool; None if no delivery has opened the spool yet."""
    path = path_of(spool) / _FILE
    return DeliveryStatus(**path.read_json("end the training and restart it")) if path.exists() else None


def write_status(spool: Place, status: DeliveryStatus) -> None:
    (path_of(spool) / _FILE).write_json(dataclasses.asdict(status))


class Spool:
    """Writes records one by one: a base, then epochs. Each training begins a new generation.

    Args:
      path: path or URL of the directory, under which the store's shards must also reach it.
      publish_rows: f(directory, epoch, dtype, after), writes rows as `Store.publish` does.
      dtype: the dtype of the packed rows; `auto` for the smallest one that changes no weight.
      stream: f() -> `Record.stream`; None if the training reads no stream.
      inputs, change_inputs: see `Record`.

    Attributes:
      look_seconds: time between two looks at the delivery status of a record that waits.
      last: the last record of this generation; None before its base is written.
      records, rows, removed: number of each that this object has written, in all generations.
    """

    def __init__(
        self,
        path: Place,
        model: str,
        publish_rows: PublishRows,
        configs: Sequence[TableConfig],
        dtype: str,
        stream: Callable[[], dict[str, float]] | None = None,
        inputs: Mapping[str, str] | None = None,
        change_inputs: bool = False,
    ) -> None:
        self.path: Path = path_of(path).absolute()
        self.look_seconds = _LOOK_SECONDS if isinstance(self.path, LocalPath) else _STORE_LOOK_SECONDS
        self._stream, self._inputs, self._changes_inputs = stream, dict(inputs or {}), change_inputs
        self._model, self._publish_rows = model, publish_rows
        self._dtype = exact_dtype(configs) if dtype == "auto" else dtype
        self._tables = [{"config": config.to_dict()} for config in configs]
        self._generation, self._holder = 0, ""
        self.last: Record | None = None
        self._is_closed = False
        self.records = self.rows = self.removed = 0

    def begin(self) -> None:
        """Begins a new generation: the next record has all rows."""
        self._generation, self._holder, self.last = records.next_generation(self.path), uuid.uuid4().hex, None

    def write(self, step: int, write_tower: Callable[[str], object], taken: float | None = None) -> Record:
        """Writes the next record, with the rows that have changed since the last one.

        If this call raises, the next call writes the same record again, with all unpublished changes, or begins a new
        generation if the record may have been written nevertheless.

        Args:
          step: the global step of the dense tower.
          write_tower: f(local directory), writes the SavedModel of the dense tower.
          taken: when the rows were taken, in seconds since 1970; None for now.
        """
        if not self._generation:
            self.begin()
        after = self.last.epoch if self.last else None
        kind, epoch = (BASE, 0) if after is None else (EPOCH, after + 1)
        name, now = records.name_of(kind, epoch), time.time() if taken is None else taken
        stream = self._stream() if self._stream else None
        directory = records.generation_path(self.path, self._generation)
        (directory / name).remove_all()
        files = self._publish_rows(str(directory / name), epoch, self._dtype, after)
        record = Record(
            model=self._model,
            generation=self._generation,
            holder=self._holder,
            epoch=epoch,
            kind=kind,
            global_step=step,
            time=now,
            dtype=self._dtype,
            tables=self._tables,
            files=[{**entry, "file": f"{name}/{entry['file']}"} for entry in files],
            dense_files=_write_tower(directory / records.name_of(records.DENSE, epoch), write_tower),
            stream=stream,
            inputs=self._inputs,
            change_inputs=self._changes_inputs,
        )
        if self._is_closed:
            raise UserError(f"{self.path}: the rows of {name} may come from a store that is closed already")
        try:
            records.write_record(self.path, record)
        except Exception:
            # The record may have been delivered, so no other record may take its number.
            if (directory / f"{name}.json").exists():
                self.begin()
            raise
        self.last, self.records = record, self.records + 1
        self.rows, self.removed = self.rows + record.rows, self.removed + record.removed
        if kind == BASE:
            records.remove_generations_before(self.path, record.generation)
        return record

    def close(self) -> None:
        """Refuses all further records, even one that a thread is writing, because the store may be closed next."""
        self._is_closed = True

    def status(self) -> DeliveryStatus | None:
        """Returns the delivery status of this generation; None if no delivery has reported one yet."""
        status = read_status(self.path)
        return status if status and status.generation == self._generation else None


def _write_tower(path: Path, write_tower: Callable[[str], object]) -> list[dict[str, Any]]:
    """Writes a tower into a directory. Returns the `dense_files` for its record."""
    path.remove_all()
    path.mkdir(parents=True, exist_ok=True)
    with path.filled_locally() as local:
        write_tower(str(local))
    for file in path.files():
        (path / file).sync()
    return [describe_file(path, file) for file in path.files()]
