"""Tables on disk: Arrow IPC files for each table and shard, which any program that reads Arrow can read.

A snapshot is full, or a delta of the previous snapshot. For each table and shard it has these files, by `kind`:

    full      NAME-SHARD-of-SHARDS.arrow                      all rows
    delta     NAME-SHARD-of-SHARDS.STEP.delta.arrow           the rows changed since the previous snapshot
    removed   NAME-SHARD-of-SHARDS.STEP.removed.arrow         the keys removed since then, if there are any
    use       NAME-SHARD-of-SHARDS[.STEP].use.arrow           if the table evicts rows: the last step and the number
                                                              of trainings of each of these rows
    counts    NAME-SHARD-of-SHARDS[.STEP].counts.arrow        if the table has a `min_frequency`: the counting filter
    cold      NAME-SHARD-of-SHARDS[.ID].cold.FILE             if rows lie on disk: each FILE of their database, linked

Of a chain, only the newest `cold` files count. A row in a rows file is newer than one there.

A chain is a full snapshot and the deltas after it, in order. Rows files have the columns `key` int64 and `row`:
FixedSizeList<float32>[width], or FixedSizeBinary[4 lanes] for another `row_dtype`, see `row_form`. The metadata of
every schema contains the TableConfig as JSON. Files are written in batches of bounded size and renamed into place once
they are on disk, so a file with its final name is complete. The caller lists the files, with their sizes and checksums,
in its manifest.
"""

import contextlib
import json
import pathlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.table import rocks
from ctr_trainer.embedding.table.cold_rows import LinkedRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.files.paths import Advanced, AnyPath, Path, bytes_and_crc32, path_of
from ctr_trainer.system.messages.errors import UserError

# The entry of a file in a manifest: its name `file`, `table`, `kind`, `rows`, `bytes` and `crc32`. An entry of a
# snapshot also has the snapshot's name `snapshot`, and `since`, the snapshot of which it is a delta.
FileEntry = dict[str, Any]
CONFIG = b"ctr_trainer.table"
_MOST_WEIGHTS = 1 << 16
_BATCHES = 16  # That are read before a file is opened again.
KEY = pa.field("key", pa.int64(), nullable=False)
_COUNTED = b"ctr_trainer.counted"
_COUNTS = [pa.field(name, pa.uint8(), nullable=False) for name in ("first", "second")]
COLD, COLD_NAME = "cold", ".cold."
FILE_NAME = re.compile(r".+-\d{5}-of-\d{5}\.(.*\.)?(arrow|cold\..+)")  # Of all files of snapshots.
_USE = [KEY, *(pa.field(name, pa.uint32(), nullable=False) for name in ("last_used", "frequency"))]


def config_to_json(config: TableConfig) -> str:
    return json.dumps(config.to_dict())


def config_from_json(text: str | bytes) -> TableConfig:
    """Returns the TableConfig in a JSON text; raises UserError if the text is not one."""
    try:
        config = TableConfig.from_dict(json.loads(text))
        if not isinstance(config.name, str) or not all(isinstance(dim, int) for dim in config.dims):
            raise ValueError("name is a string and dims are integers")
        if config.weights > _MOST_WEIGHTS:
            raise ValueError(f"a row of {config.weights} weights; at most {_MOST_WEIGHTS} are possible")
        return config
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise UserError(f"not a table's configuration: {error}") from None


def schema(config: TableConfig, kind: str = "full", counted: int | None = None) -> pa.Schema:
    """Returns the pyarrow schema of a table's files of a kind; `counted` is metadata of a `counts` file."""
    rows = [KEY, pa.field("row", row_type(config), nullable=False)]
    fields = {"full": rows, "delta": rows, "removed": [KEY], "use": _USE, "counts": _COUNTS}[kind]
    metadata = {CONFIG: config_to_json(config)}
    return pa.schema(fields, metadata if counted is None else {**metadata, _COUNTED: str(counted)})


def row_type(config: TableConfig) -> pa.DataType:
    """Returns the Arrow type of a table's rows."""
    if not config.form.is_exact:
        return pa.binary(4 * config.form.lanes)
    return pa.list_(pa.field("item", pa.float32(), nullable=False), config.width)


def row_array(config: TableConfig, rows: np.ndarray) -> pa.Array:
    """Returns an Arrow array of C-contiguous rows, float32[n, width], without a copy if their form is exact."""
    buffer, of = pa.py_buffer(config.form.encode(rows)), row_type(config)
    if not config.form.is_exact:
        return pa.Array.from_buffers(of, len(rows), [None, buffer])
    return pa.FixedSizeListArray.from_arrays(pa.Array.from_buffers(pa.float32(), rows.size, [None, buffer]), type=of)


def key_array(keys: np.ndarray) -> pa.Array:
    """Returns an Arrow array of contiguous keys, int64[n], without a copy."""
    return pa.Array.from_buffers(pa.int64(), len(keys), [None, pa.py_buffer(keys)])


def check(path: AnyPath, entry: FileEntry, advanced: Advanced = lambda text: None) -> None:
    """Checks the size, the checksum and the number of rows of a file that `write` wrote.

    Calls `advanced` with a text after each block of the file.

    Raises UserError, which names the file, if the file is missing, truncated or altered.
    """
    file = _file(path, entry)
    try:
        size = file.size()
        if size != entry["bytes"]:
            raise UserError(f"{file}: {size} bytes, not {entry['bytes']}: truncated or replaced; use another snapshot")
        if entry["file"].endswith(rocks.ROWS_FILE):
            return  # RocksDB checks each block when it reads it.
        _, crc32 = bytes_and_crc32(file, advanced)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; the snapshot needs this file") from None
    if crc32 != entry["crc32"]:
        raise UserError(f"{file}: checksum {crc32:08x}, expected {entry['crc32']:08x}: altered; use another snapshot")
    if entry["kind"] == COLD:
        return
    with _open(path, entry) as (_, reader):
        rows = 0
        for number in range(reader.num_record_batches):
            rows += reader.get_batch(number).num_rows
            advanced(f"counting the rows of {file}")
    if rows != entry["rows"]:
        raise UserError(f"{file}: {rows} rows, expected {entry['rows']}; use another snapshot")


def read(path: AnyPath, entry: FileEntry) -> Iterator[tuple[TableConfig, np.ndarray, np.ndarray]]:
    """Yields (TableConfig, keys int64[n], stored rows float32[n, lanes]) blocks of a checked rows file, at least one.

    The first block has no rows, so that the table of an empty file is known.
    """
    config = read_config(path, entry)
    yield config, np.empty(0, np.int64), np.empty((0, config.form.lanes), np.float32)
    for batch in batches(path, entry):
        yield config, *columns(config, batch)


def rows_files(files: Sequence[FileEntry]) -> list[FileEntry]:
    """Returns the entries of the Arrow files."""
    return [entry for entry in files if entry["kind"] != COLD]


def read_config(path: AnyPath, entry: FileEntry) -> TableConfig:
    """Returns the TableConfig of a checked file."""
    with _open(path, entry) as (config, _):
        return config


def read_use(path: AnyPath, entry: FileEntry) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields (keys int64[n], last_used uint32[n], frequency uint32[n]) of a checked `use` file."""
    for batch in batches(path, entry):
        yield tuple(column.to_numpy() for column in batch.columns)


@contextlib.contextmanager
def _open(path: AnyPath, entry: FileEntry) -> Iterator[tuple[TableConfig, pa.RecordBatchFileReader]]:
    """Returns a context manager of (TableConfig, Arrow file reader)."""
    file = _file(path, entry)
    try:
        with file.open_input() as source, pa.ipc.open_file(source) as reader:
            config = config_from_json((reader.schema.metadata or {}).get(CONFIG, b"null"))
            expected = schema(config, entry["kind"])
            if not reader.schema.equals(expected):
                raise UserError(f"{file}: columns {reader.schema}, expected {expected}")
            yield config, reader
    except pa.ArrowInvalid as error:
        raise UserError(f"{file}: not an Arrow IPC file of a table: {error}") from None


def batches(path: AnyPath, entry: FileEntry) -> Iterator[pa.RecordBatch]:
    """Yields the record batches of a checked file."""
    with _open(path, entry) as (_, reader):
        count = reader.num_record_batches
    for first in range(0, count, _BATCHES):
        with _open(path, entry) as (_, reader):  # Reopens the file, because blocks stay in memory while it is open.
            for number in range(first, min(first + _BATCHES, count)):
                yield reader.get_batch(number)


def read_counts(path: AnyPath, entry: FileEntry) -> tuple[np.ndarray, int]:
    """Returns (counters uint8[2, width], counted) of a checked `counts` file, see `Admission.counts`."""
    with _open(path, entry) as (_, reader):
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        lines = [np.concatenate([batch.column(line).to_numpy() for batch in batches]) for line in range(len(_COUNTS))]
        return np.stack(lines), int(reader.schema.metadata[_COUNTED])


def write_cold(path: Path, linked: LinkedRows, of_table: FileEntry, shard: int, shards: int) -> list[FileEntry]:
    """Links the files of rows on disk into the directory of a snapshot; returns their entries.

    What the last snapshot has is linked to its files, because the disk of the rows may be another file system.
    """
    entries, place = [], f"{of_table['table']}-{shard:05d}-of-{shards:05d}"
    common = {name: of_table[name] for name in ("table", "snapshot", "since")}
    for file, size, crc32 in linked.files():
        name = f"{place}{COLD_NAME}{file.name}"
        before = linked.saved.get(file.name, file)
        (path / name).share(before if before.exists() else file)
        if file.name.endswith(rocks.ROWS_FILE):
            linked.saved[file.name] = path / name
        entries.append(dict(file=name, kind=COLD, **common, rows=0, bytes=size, crc32=crc32))
    entries[0]["rows"] = linked.rows
    return entries


def check_chain(files: Sequence[FileEntry]) -> None:
    """Raises UserError unless `files` are one full snapshot and the deltas after it, in order."""
    before = None
    for snapshot, since in dict.fromkeys((entry["snapshot"], entry["since"]) for entry in files):
        if since != before:
            raise UserError(
                f"the snapshot {snapshot} is a delta of {since}, not of {before}: list a full snapshot and all deltas "
                "after it, in order"
            )
        before = snapshot


def iterate(
    path: AnyPath, files: Sequence[FileEntry], advanced: Advanced = lambda text: None
) -> Iterator[tuple[TableConfig, np.ndarray, np.ndarray]]:
    """Checks each file, see `check`, then yields what `merged` does, with rows float32[n, width]."""
    check_chain(files)
    for entry in files:
        check(path, entry, advanced)
    for config, keys, stored in merged(path, files, advanced=advanced):
        yield config, keys, config.form.decode(stored)


def cold_tables(
    path: AnyPath, files: Sequence[FileEntry]
) -> Iterator[tuple[str, tuple[int, int], int, dict[str, Path]]]:
    """Yields (table, (shard, shards), rows, file by its name in the database) of rows on disk in a chain."""
    for place, entries in cold_files(files).items():
        table, shard, _, shards = place.rsplit("-", 3)
        own = {name: _file(path, entry) for name, entry in entries.items()}
        yield table, (int(shard), int(shards.partition(".")[0])), sum(each["rows"] for each in entries.values()), own


def cold_files(files: Sequence[FileEntry]) -> dict[str, dict[str, FileEntry]]:
    """Returns the entries of rows on disk in a chain, by table and shard, then by their names in the database."""
    groups: dict[str, dict[str, FileEntry]] = {}
    for entry in files:
        if entry["kind"] == COLD and entry["snapshot"] == files[-1]["snapshot"]:
            place, _, name = entry["file"].rpartition(COLD_NAME)
            groups.setdefault(place, {})[name] = entry
    return groups


def rows_of_snapshots(files: Sequence[FileEntry]) -> dict[str, list[int]]:
    """Returns how many rows of each table are in the files of each snapshot of a chain, the full one first."""
    found: dict[str, dict[Any, int]] = {}
    for entry in files:
        if entry["kind"] in ("full", "delta"):
            rows = found.setdefault(entry["table"], {})
            rows[entry["snapshot"]] = rows.get(entry["snapshot"], 0) + entry["rows"]
    return {name: [*rows.values()] for name, rows in found.items()}


def merged(
    path: AnyPath, files: Sequence[FileEntry], with_cold: bool = True, advanced: Advanced = lambda text: None
) -> Iterator[tuple[TableConfig, np.ndarray, np.ndarray]]:
    """Yields the (TableConfig, keys int64[n], stored rows float32[n, lanes]) blocks of a checked chain.

    Each key appears once, with its last row; removed keys do not appear. For this, an index of the keys in the deltas
    is kept in memory, and of all keys in rows files if there are rows on disk. Each table appears at least once.
    `files` are the results of a store's `save` for a full snapshot, then for each of its deltas.
    """
    newer: dict[str, Index] = {}
    for name, (_, *deltas) in rows_of_snapshots(files).items():
        newer[name] = Index()
        newer[name].reserve(sum(deltas))
    cold = list(cold_tables(path, files)) if with_cold else []
    held, configs = {table: Index() for table, *_ in cold}, dict[str, TableConfig]()
    base = files[0]["snapshot"] if files else None
    for entry in reversed(rows_files(files)):
        kind, seen = entry["kind"], newer.setdefault(entry["table"], Index())
        if kind == "removed":
            for batch in batches(path, entry):
                seen.find_or_add(batch.column("key").to_numpy())
        elif kind in ("full", "delta"):
            for config, keys, rows in read(path, entry):
                if len(seen):
                    new = seen.find(np.require(keys, requirements=("C", "A"))) < 0
                    keys, rows = keys[new], rows[new]
                yield config, keys, rows
                if entry["snapshot"] != base:
                    seen.find_or_add(np.require(keys, requirements=("C", "A")))
                if config.name in held:
                    configs.setdefault(config.name, config)  # That of the newest snapshot, which has the rows on disk.
                    held[config.name].find_or_add(np.require(keys, requirements=("C", "A")))
    for table, (shard, _), expected, own in cold:
        count = 0
        for keys, packed in rocks.read_blocks(own, configs[table].form.nbytes, advanced):
            new = held[table].find(keys) < 0
            count += int(new.sum())
            yield configs[table], keys[new], packed[new].view(np.float32)
        if count != expected:
            raise UserError(f"{path}: table {table}, shard {shard}: {count} rows on disk, expected {expected}")


def columns(config: TableConfig, batch: pa.RecordBatch) -> tuple[np.ndarray, np.ndarray]:
    """Returns the keys, int64[n], and stored rows, float32[n, lanes], of a record batch: views of its buffers."""
    rows, lanes = batch.column("row"), config.form.lanes
    if config.form.is_exact:
        stored = rows.flatten().to_numpy()
    else:
        stored = np.frombuffer(rows.buffers()[1], np.float32, len(rows) * lanes, rows.offset * 4 * lanes)
    return batch.column("key").to_numpy(), stored.reshape(len(batch), lanes)


def _file(path: AnyPath, entry: FileEntry) -> Path:
    if pathlib.PurePath(entry["file"]).name != entry["file"]:
        raise UserError(f"snapshot file {entry['file']!r}: expected a name without a directory")
    return path_of(path) / entry["file"]
