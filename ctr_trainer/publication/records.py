"""The files of a publication, and the records that say what belongs together.

A publication is a directory, or the URL of one:

    publication.json                         which generation is current; replaced whole
    generation-0000000003/
      base-0000000000.json                   record of the whole state after epoch 0; written last
      epoch-0000000001.json                  record of what changed since the state after epoch 0; written last
      base-0000000000/TABLE-00000-of-00001.rows.arrow
      epoch-0000000001/TABLE-00000-of-00001.rows.arrow, TABLE-00000-of-00001.removed.arrow
      dense-0000000001/                      a SavedModel: the dense tower, whose files each record names

A generation begins with a base when a training begins or is restored. The state after an epoch is the newest base up to
it with each epoch after that base applied in order. `embedding.snapshot.packed_files` says what the files of rows hold.
"""

import dataclasses
import re
import zlib

from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.files.paths import bytes_and_crc32, path_of
from ctr_trainer.messages.errors import UserError

_GENERATION = re.compile(r"generation-(\d{10})")
_NUMBERED = re.compile(r"(base|epoch|dense)-(\d{10})(?:\.json)?")
FORMAT = 1
PUBLICATION = "publication.json"
BASE, EPOCH = KINDS = ("base", "epoch")
_CURE = "publish the model again: see docs/serving.md"
_RECORD = re.compile(rf"({'|'.join(KINDS)})-(\d{{10}})\.json")


def remove_generations_before(url, generation):
    """Removes the generations of lower numbers, current or unfinished."""
    for number, path in _generations(url):
        if number < generation:
            path.remove_all()


def remove_before(url, record):
    """Removes bases, epochs and towers that no state from a record on needs.

    It goes by their numbers, so that it may run while records after that one are written.

    Args:
      url: path or URL of the publication.
      record: `Record`, which stays, with its files.
    """
    limits = {
        BASE: record.epoch,
        EPOCH: record.epoch + (record.kind == BASE),
        "dense": int(record.dense.rpartition("-")[2]),
    }
    directory = generation_path(url, record.generation)
    old = [path for path in directory.iterdir() if _is_below(path.name, limits)]
    for path in sorted(old, key=lambda path: path.suffix != ".json"):  # No record is left without its files.
        path.unlink() if path.suffix == ".json" else path.remove_all()


def newest_generation(url):
    """-> the highest number of a generation that has a directory; 0 if there is none."""
    return max((number for number, _ in _generations(url)), default=0)


def _generations(url):
    """-> list of (number, `Path`) of the directories of generations; what else lies there is the user's."""
    found = ((_GENERATION.fullmatch(path.name), path) for path in path_of(url).glob("generation-*"))
    return [(int(match[1]), path) for match, path in found if match]


def _is_below(name, limits):
    found = _NUMBERED.fullmatch(name)
    return found is not None and int(found[2]) < limits[found[1]]


@dataclasses.dataclass(frozen=True)
class Publication:
    """Which generation is current.

    Attributes:
      model: name of the model.
      generation: number of the current generation, from 1 on.
      holder: of the publisher that made this generation, unique.
    """

    model: str
    generation: int
    holder: str


@dataclasses.dataclass(frozen=True)
class Record:
    """What a reader has to apply to have the state after an epoch.

    Attributes:
      model: name of the model.
      generation: number of the generation.
      epoch: number of the epoch.
      kind: `base`, the whole state after the epoch, or `epoch`, what changed since the state after the epoch before.
      global_step: of the dense tower.
      time: seconds since 1970 at which the rows were taken: all that the tables, or the service's shards, had by then
        is in.
      dtype: of the packed rows, see `embedding.snapshot.packed_rows`.
      tables: for each table {`config`: of `TableConfig.to_dict`}.
      files: for each file of rows {`file`, `table`, `kind`, `rows`, `bytes`, `crc32`}; `file` is relative to the
        generation's directory, `kind` is `rows` or `removed`.
      dense: name of the directory of the dense tower that goes with this state.
      dense_files: for each of its files {`file`, `bytes`, `crc32`}; `file` is relative to that directory.
    """

    model: str
    generation: int
    epoch: int
    kind: str
    global_step: int
    time: float
    dtype: str
    tables: list
    files: list
    dense: str
    dense_files: list

    @property
    def name(self):
        """Of the record's file without `.json`, and of the directory of its rows."""
        return name_of(self.kind, self.epoch)

    @property
    def rows(self):
        """How many rows the files hold."""
        return sum(entry["rows"] for entry in self.files if entry["kind"] == "rows")

    @property
    def removed(self):
        """How many removed keys the files hold."""
        return sum(entry["rows"] for entry in self.files if entry["kind"] == "removed")

    @property
    def checksum(self):
        """CRC-32 over the files' CRC-32s in their order, each as 4 little-endian bytes."""
        return zlib.crc32(b"".join(entry["crc32"].to_bytes(4, "little") for entry in self.files))

    def configs(self):
        """-> the `TableConfig` of each table, by name."""
        configs = [TableConfig.from_dict(table["config"]) for table in self.tables]
        return {config.name: config for config in configs}

    def to_dict(self):
        """-> dict that JSON can hold."""
        sums = dict(rows=self.rows, removed=self.removed, checksum=self.checksum)
        return {"format": FORMAT, **dataclasses.asdict(self), **sums}

    @classmethod
    def from_dict(cls, values, where):
        """-> the Record of `to_dict`.

        Args:
          where: of the record, for the message.

        Raises:
          UserError: it is of another format, or was altered.
        """
        values = _of_format(values, where)
        sums = {name: values.pop(name, None) for name in ("rows", "removed", "checksum")}
        try:
            record = cls(**values)
            found = {name: getattr(record, name) for name in sums}
            record.configs()
        except (AttributeError, KeyError, TypeError, ValueError, UserError) as error:
            raise UserError(f"{where}: is no record of a publication: {error}; {_CURE}") from None
        if found != sums:
            raise UserError(f"{where}: its files have {found}, and it says {sums}: altered; {_CURE}")
        return record


def name_of(kind, epoch):
    """-> the name of a record's file without `.json`, and of the directory of its rows."""
    return f"{kind}-{epoch:010d}"


def dense_name(version):
    """-> the name of the directory of a version of the dense tower, which is numbered by its epoch."""
    return f"dense-{version:010d}"


def generation_path(url, generation):
    """-> the `Path` of a generation's directory."""
    return path_of(url) / f"generation-{generation:010d}"


def read_publication(url):
    """-> the `Publication` at a path or URL; None if there is none.

    Raises:
      UserError: it is cut off, altered, or of another format.
    """
    path = path_of(url) / PUBLICATION
    if not path.exists():
        return None
    try:
        return Publication(**_of_format(path.read_json(_CURE), path))
    except TypeError as error:
        raise UserError(f"{path}: is no publication: {error}; {_CURE}") from None


def write_publication(url, publication):
    """Makes a generation the current one. Makes the directory if there is none."""
    (path_of(url) / PUBLICATION).write_json({"format": FORMAT, **dataclasses.asdict(publication)})


def list_records(url, generation):
    """-> list of (kind, epoch) of the records of a generation, by epoch; a base comes after the epoch of its number."""
    directory = generation_path(url, generation)
    found = (_RECORD.fullmatch(path.name) for path in (directory.iterdir() if directory.is_dir() else ()))
    return sorted(((each[1], int(each[2])) for each in found if each), key=lambda each: (each[1], each[0] == BASE))


def newest_base(names):
    """-> the epoch of the newest base among (kind, epoch) pairs, as of `list_records`; None if there is none."""
    return max((epoch for kind, epoch in names if kind == BASE), default=None)


def read_record(url, generation, kind, epoch):
    """-> a `Record`; its files are not read, see `check_files`.

    Raises:
      UserError: it is missing, cut off or altered, or another record has its name.
    """
    path = generation_path(url, generation) / f"{name_of(kind, epoch)}.json"
    record = Record.from_dict(path.read_json(_CURE), path)
    if (record.generation, record.kind, record.epoch) != (generation, kind, epoch):
        raise UserError(
            f"{path}: is the record of generation {record.generation}, {record.kind} {record.epoch}; {_CURE}"
        )
    return record


def write_record(url, record):
    """Writes a record, once all of its files are there."""
    (generation_path(url, record.generation) / f"{record.name}.json").write_json(record.to_dict())


def refuse_other_model(place: str, there: str, comes: str, marker: str) -> None:
    """Raises UserError if a place has the publication of another model; `marker` is what to delete to replace it."""
    if there and comes and there != comes:
        raise UserError(
            f"{place}: the model {there!r} is published there, and servers read it; this is {comes!r}. Publish it to "
            f"another place; to replace {there!r}, delete {marker} first"
        )


def check_files(url, record):
    """Reads every file of a record.

    Raises:
      UserError: one is missing, or not as it was written; names it.
    """
    directory = generation_path(url, record.generation)
    for entry in record.files:
        check_file(directory / entry["file"], entry)
    for entry in record.dense_files:
        check_file(directory / record.dense / entry["file"], entry)


def check_file(path, entry, name=None):
    """Reads a file of a record.

    Args:
      path: `Path` of the file.
      entry: {`bytes`, `crc32`} of it.
      name: path that the message names; None for `path`.

    Raises:
      UserError: it is missing, or not as it was written.
    """
    try:
        size, crc32 = bytes_and_crc32(path_of(path))
    except OSError as error:
        raise UserError(f"{name or path}: {error.strerror or error}; {_CURE}") from None
    if (size, crc32) != (entry["bytes"], entry["crc32"]):
        raise UserError(
            f"{name or path}: {size} bytes with the checksum {crc32:08x}, expected {entry['bytes']} with "
            f"{entry['crc32']:08x}: cut off or altered; {_CURE}"
        )


def _of_format(values, where):
    """-> a dict without its `format`, which has to be `FORMAT`."""
    values = dict(values)
    found = values.pop("format", None)
    if found != FORMAT:
        raise UserError(f"{where}: is of format {found}, expected {FORMAT}: use the ctr_trainer that wrote it")
    return values
