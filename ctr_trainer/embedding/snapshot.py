"""Tables on disk: one Arrow IPC file a table and shard, readable by anything that reads Arrow.

Columns `key` int64 and `row` FixedSizeList<float32>[width]; the schema's metadata holds the TableConfig as JSON. Files
are written in batches of bounded size and renamed into place once they are on the disk, so a file that has its name is
whole. The caller lists them, with their sizes and checksums, in its manifest.
"""

import dataclasses
import json
import os
import pathlib
import zlib

import numpy as np
import pyarrow as pa

from ctr_trainer.embedding.config import TableConfig
from ctr_trainer.errors import UserError

_BATCH_BYTES = 16 << 20
_CRC_BYTES = 4 << 20
_CONFIG = b"ctr_trainer.table"
_MOST_WEIGHTS = 1 << 16


def config_to_json(config):
    """TableConfig -> str."""
    return json.dumps(dataclasses.asdict(config))


def config_from_json(text):
    """str -> TableConfig.

    Raises:
      UserError: it is not the JSON of a TableConfig.
    """
    try:
        config = TableConfig(**json.loads(text))
        if not isinstance(config.name, str) or not all(isinstance(dim, int) for dim in config.dims):
            raise ValueError("name is a string and dims are integers")
        if config.weights > _MOST_WEIGHTS:
            raise ValueError(f"a row of {config.weights} weights; at most {_MOST_WEIGHTS} are possible")
        return config
    except (TypeError, ValueError) as error:
        raise UserError(f"not a table's configuration: {error}") from None


def schema(config):
    """-> the pyarrow schema of this table's rows."""
    fields = [pa.field("key", pa.int64(), nullable=False), pa.field("row", row_type(config.width), nullable=False)]
    return pa.schema(fields, {_CONFIG: config_to_json(config)})


def row_type(width):
    """-> the Arrow type of a row of `width` floats."""
    return pa.list_(pa.field("item", pa.float32(), nullable=False), width)


def row_array(rows):
    """float32[n, width], C-contiguous -> an Arrow array of rows, without a copy."""
    flat = pa.Array.from_buffers(pa.float32(), rows.size, [None, pa.py_buffer(rows)])
    return pa.FixedSizeListArray.from_arrays(flat, type=row_type(rows.shape[1]))


def key_array(keys):
    """int64[n], contiguous -> an Arrow array, without a copy."""
    return pa.Array.from_buffers(pa.int64(), len(keys), [None, pa.py_buffer(keys)])


def row_blocks(keys, rows, bytes_a_block=_BATCH_BYTES):
    """Cuts int64[n] and float32[n, width] into (keys, rows) views of about `bytes_a_block`."""
    step = max(bytes_a_block // (rows.shape[1] * 4 + 8), 1)
    for first in range(0, len(keys), step):
        yield keys[first : first + step], rows[first : first + step]


def write(path, table, shard=0, shards=1):
    """Writes one shard's rows of a table.

    Args:
      path: the directory, which exists.
      table: a Table.
      shard, shards: which part of the table this is.

    Returns:
      a dict of `file` (relative to `path`), `table`, `rows`, `bytes` and `crc32`: what `check` needs.
    """
    name = f"{table.config.name}-{shard:05d}-of-{shards:05d}.arrow"
    target = pathlib.Path(path) / name
    partial = target.with_name(f".{name}.partial")
    with open(partial, "wb") as file:
        sink = _ChecksumFile(file)
        of_table = schema(table.config)
        with pa.PythonFile(sink, mode="w") as arrow_file, pa.ipc.new_file(arrow_file, of_table) as writer:
            for keys, rows in row_blocks(table.keys, table.rows):
                writer.write_batch(pa.RecordBatch.from_arrays([key_array(keys), row_array(rows)], schema=of_table))
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, target)
    _sync_directory(path)
    return dict(file=name, table=table.config.name, rows=len(table), bytes=sink.bytes, crc32=sink.crc32)


def check(path, entry):
    """Makes sure that a file is what `write` left: its size, its checksum and its rows.

    Raises:
      UserError: it is missing, truncated or altered; names the file.
    """
    file = _file(path, entry)
    try:
        size = file.stat().st_size
        if size != entry["bytes"]:
            raise UserError(f"{file}: {size} bytes, not {entry['bytes']}: truncated or replaced; use another snapshot")
        crc32 = 0
        with open(file, "rb") as stream:
            while block := stream.read(_CRC_BYTES):
                crc32 = zlib.crc32(block, crc32)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; the snapshot needs this file") from None
    if crc32 != entry["crc32"]:
        raise UserError(f"{file}: checksum {crc32:08x}, expected {entry['crc32']:08x}: altered; use another snapshot")
    rows = sum(len(keys) for _, keys, _ in read(path, entry))
    if rows != entry["rows"]:
        raise UserError(f"{file}: {rows} rows, expected {entry['rows']}; use another snapshot")


def read(path, entry):
    """Yields (TableConfig, keys int64[n], rows float32[n, width]) of one file that was checked; at least once.

    An empty file yields one block of no rows, so that its table is known.
    """
    file = _file(path, entry)
    try:
        with pa.memory_map(str(file)) as source, pa.ipc.open_file(source) as reader:
            config = config_from_json((reader.schema.metadata or {}).get(_CONFIG, b"null"))
            if not reader.schema.equals(schema(config)):
                raise UserError(f"{file}: columns {reader.schema}, expected `key` and rows of {config.width} floats")
            yield config, np.empty(0, np.int64), np.empty((0, config.width), np.float32)
            for i in range(reader.num_record_batches):
                yield config, *columns(reader.get_batch(i))
    except pa.ArrowInvalid as error:
        raise UserError(f"{file}: not an Arrow IPC file of a table: {error}") from None


def iterate(path, files):
    """Checks each file, then yields its (TableConfig, keys int64[n], rows float32[n, width]) blocks.

    Args:
      path: the snapshot's directory.
      files: what the `save` of a store returned.
    """
    for entry in files:
        check(path, entry)
        yield from read(path, entry)


def columns(batch):
    """A record batch of keys and rows -> (int64[n], float32[n, width]), views of its buffers."""
    rows = batch.column("row")
    return batch.column("key").to_numpy(), rows.flatten().to_numpy().reshape(len(batch), rows.type.list_size)


def _file(path, entry):
    if pathlib.PurePath(entry["file"]).name != entry["file"]:
        raise UserError(f"snapshot file {entry['file']!r}: expected a name without a directory")
    return pathlib.Path(path) / entry["file"]


def _sync_directory(path):
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class _ChecksumFile:
    """A file to write to that knows its size and its CRC-32."""

    closed = False

    def __init__(self, file):
        self._file = file
        self.bytes = 0
        self.crc32 = 0

    def write(self, data):
        self.crc32 = zlib.crc32(data, self.crc32)
        self.bytes += len(data)
        return self._file.write(data)

    def flush(self):
        self._file.flush()

    def close(self):
        """Left open: `write` has it synced to the disk first."""
