"""The files of a publication, and the records that list the files that belong together.

A publication is a directory, or the URL of one:

    generation-0000000003/
      base-0000000000.json                   record of the whole state after epoch 0; written last
      epoch-0000000001.json                  record of the changes since the state after epoch 0; written last
      base-0000000000/TABLE-00000-of-00001.rows.arrow
      epoch-0000000001/TABLE-00000-of-00001.rows.arrow, TABLE-00000-of-00001.removed.arrow
      dense-0000000001/                      the dense tower after epoch 1, a SavedModel

A generation begins with a base when a training begins or is restored. The current generation is the last one that has a
record. The state after an epoch is the newest base up to that epoch, with each later epoch applied in order.
`embedding.snapshot.packed_rows` describes the files of rows.
"""

import dataclasses
import logging
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Path, bytes_and_crc32, check_below, path_of
from ctr_trainer.system.messages.errors import UserError

_GENERATION = re.compile(r"generation-(\d{10})")
_NUMBERED = re.compile(r"(base|epoch|dense)-(\d{10})(\.json)?")
_LOOK_SECONDS = 0.01  # A look at a local file takes microseconds.
_log = logging.getLogger(__name__)
BASE, EPOCH, DENSE = "base", "epoch", "dense"  # The last one is the kind of a tower's directory.
_CURE = "publish the model again, see docs/serving.md"

Place = str | os.PathLike | Path  # A path or URL of a publication's directory.


@dataclasses.dataclass(frozen=True)
class Record:
    """The files that a reader applies to get the state after an epoch.

    Attributes:
      generation: number of the generation; the first is 1.
      holder: a unique name of the publisher that made this generation.
      kind: `base` for the whole state after the epoch; `epoch` for the changes since the previous epoch.
      global_step: the global step of the dense tower.
      time: when the rows were taken, in seconds since 1970. The record has every change that the tables, or the
        shards of the service, had received by then.
      dtype: the dtype of the packed rows, see `embedding.snapshot.packed_rows`.
      tables: for each table {`config`: the dict of `TableConfig.to_dict`}.
      files: for each file of rows {`file`, `table`, `kind`, `rows`, `bytes`, `crc32`}; `file` is relative to the
        generation's directory, `kind` is `rows` or `removed`.
      dense_files: for each file of the dense tower {`file`, `bytes`, `crc32`}; `file` is relative to `dense`.
      inputs: dict of feature -> the kind of its values, for the features that a request contains; "" for those that it
        may contain, but that the model does not read. {} if they are not known.
      change_inputs: whether the model may replace one with other inputs.
      stream: position of the training in its stream when the rows were taken; None without a stream. {`event_seconds`:
        the newest trained event time in seconds since 1970, 0 before the first; `lag_records`: number of waiting
        records}.
    """

    model: str
    generation: int
    holder: str
    epoch: int
    kind: str
    global_step: int
    time: float
    dtype: str
    tables: list[dict[str, Any]]
    files: list[dict[str, Any]]
    dense_files: list[dict[str, Any]]
    stream: dict[str, float] | None = None
    inputs: dict[str, str] = dataclasses.field(default_factory=dict)
    change_inputs: bool = False

    @property
    def dense(self) -> str:
        """The name of the directory of the dense tower."""
        return name_of(DENSE, self.epoch)

    @property
    def rows(self) -> int:
        return sum(entry["rows"] for entry in self.files if entry["kind"] == "rows")

    @property
    def removed(self) -> int:
        return sum(entry["rows"] for entry in self.files) - self.rows

    def configs(self) -> dict[str, TableConfig]:
        configs = [TableConfig.from_dict(table["config"]) for table in self.tables]
        return {config.name: config for config in configs}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: object) -> "Record":
        """Returns the record that `dataclasses.asdict` made into a dict. `where` is its location in messages."""
        try:
            record = cls(**values)
            record.configs(), record.rows, record.removed
            check_below([*record.configs(), *(entry["file"] for entry in (*record.files, *record.dense_files))])
        except (AttributeError, KeyError, TypeError, ValueError, UserError) as error:
            raise UserError(f"{where} is not a record of a publication: {error}; {_CURE}") from None
        return record


def name_of(kind: str, epoch: int) -> str:
    """Returns the name of a record's file without `.json` and of the directory of its rows, or of a tower's."""
    return f"{kind}-{epoch:010d}"


def generation_path(url: Place, generation: int) -> Path:
    return path_of(url) / f"generation-{generation:010d}"


def record_path(url: Place, generation: int, kind: str, epoch: int) -> Path:
    return generation_path(url, generation) / f"{name_of(kind, epoch)}.json"


def find_current(url: Place) -> tuple[int, list[tuple[str, int]]]:
    """Returns the number of the current generation and its records, see `list_records`; (0, []) if there is none."""
    for number, _ in reversed(list_generations(url)):
        if names := list_records(url, number):
            return number, names
    return 0, []


def list_records(url: Place, generation: int) -> list[tuple[str, int]]:
    """Returns (kind, epoch) of each record of a generation, sorted by epoch, a base after the epoch of its number."""
    directory = generation_path(url, generation)
    found = (_NUMBERED.fullmatch(path.name) for path in (directory.iterdir() if directory.is_dir() else ()))
    return sorted(
        ((each[1], int(each[2])) for each in found if each and each[3]), key=lambda each: (each[1], each[0] == BASE)
    )


def newest_base(names: Sequence[tuple[str, int]]) -> int | None:
    """Returns the epoch of the newest base among the pairs of `list_records`; None if there is no base."""
    return max((epoch for kind, epoch in names if kind == BASE), default=None)


def await_record(path: Path, seconds: float, ended: threading.Event) -> bool:
    """Waits at most `seconds`, or until `ended`, for a record. Returns whether it is there; False in a store."""
    until, is_local = time.monotonic() + seconds, isinstance(path, LocalPath)
    while not (is_local and os.path.exists(str(path))):  # It leaves errors to the next `find_current`.
        left = until - time.monotonic()
        if left <= 0 or ended.wait(min(left, _LOOK_SECONDS) if is_local else left):
            return False
    return True


def read_record(url: Place, generation: int, kind: str, epoch: int) -> Record:
    """Returns a record. Its files are not read; `check_files` checks them."""
    path = record_path(url, generation, kind, epoch)
    return Record.from_dict(path.read_json(_CURE), path)


def write_record(url: Place, record: Record) -> None:
    """Writes a record. All of its files must be written before."""
    record_path(url, record.generation, record.kind, record.epoch).write_json(dataclasses.asdict(record))


def refuse_replacing(place: str, there: Record, comes: Record, marker: str) -> None:
    """Raises UserError if a place has another model's publication, which can be replaced once `marker` is deleted.

    Also refuses a model with other inputs, if both inputs are known, unless `change_inputs` of its record is set.
    """
    if there.model and comes.model and there.model != comes.model:
        raise UserError(
            f"{place} has a publication of the model {there.model!r}, which servers read; this is {comes.model!r}. "
            f"Publish it to another place; to replace {there.model!r}, delete {marker} first"
        )
    before, now = there.inputs, comes.inputs
    changes = [f"add {name!r} ({kind})" for name, kind in now.items() if kind and not before.get(name)]
    changed = [(name, kind) for name, kind in now.items() if kind and before.get(name, "") not in ("", kind)]
    changes += [f"send {name!r} as {kind}, not as {before[name]}" for name, kind in changed]
    changes += [f"leave out {name!r}" for name in before if name not in now]
    if before and now and changes:
        text = f"{place} has {there.model!r} with other inputs: its clients have to {'; '.join(changes)}"
        if not comes.change_inputs:
            raise UserError(f"{text}. Publish to another place, or with the setting change_inputs once they do")
        _log.warning("%s", text)


def check_files(url: Place, record: Record) -> None:
    """Reads every file of a record. Raises UserError, which names the file, if one is missing or was altered."""
    directory = generation_path(url, record.generation)
    for entry in record.files:
        check_file(directory / entry["file"], entry)
    for entry in record.dense_files:
        check_file(directory / record.dense / entry["file"], entry)


def check_file(path: Place, entry: Mapping[str, Any], name: object = None) -> None:
    """Raises UserError with `name`, or else `path`, if a file has not the `bytes` and `crc32` of its entry."""
    try:
        size, crc32 = bytes_and_crc32(path_of(path))
    except OSError as error:
        raise UserError(f"{name or path}: {error.strerror or error}; {_CURE}") from None
    if (size, crc32) != (entry["bytes"], entry["crc32"]):
        raise UserError(
            f"{name or path}: {size} bytes with the checksum {crc32:08x}, expected {entry['bytes']} with "
            f"{entry['crc32']:08x}: cut off or altered; {_CURE}"
        )


def remove_generations_before(url: Place, generation: int) -> None:
    """Removes the generations with lower numbers, complete or not."""
    for number, path in list_generations(url):
        if number < generation:
            path.remove_all()


def remove_before(url: Place, generation: int, kind: str, epoch: int) -> None:
    """Removes the bases, epochs and towers that neither a record nor any later one needs.

    Only numbers are compared, so later records may be written concurrently. The record and its files stay.
    """
    limits = {BASE: epoch, EPOCH: epoch + (kind == BASE), DENSE: epoch}
    found = ((_NUMBERED.fullmatch(path.name), path) for path in generation_path(url, generation).iterdir())
    old = [path for match, path in found if match and int(match[2]) < limits[match[1]]]
    for path in sorted(old, key=lambda path: path.suffix != ".json"):  # No record is left without its files.
        if path.suffix == ".json":
            path.unlink()
        else:
            path.remove_all()


def next_generation(url: Place) -> int:
    """Returns the number after those of all generations, complete or not."""
    return max((number for number, _ in list_generations(url)), default=0) + 1


def list_generations(url: Place) -> list[tuple[int, Path]]:
    """Returns the sorted numbers of the generations, with their directories. All other files belong to the user."""
    found = ((_GENERATION.fullmatch(path.name), path) for path in path_of(url).glob("generation-*"))
    return sorted((int(match[1]), path) for match, path in found if match)
