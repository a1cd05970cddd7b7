"""What travels between the client and the service.

A row request is one Flight `do_exchange`: the descriptor's command is a JSON object, the batches up hold `key int64`,
where the worker tells what it knows `version uint32`, and where the operation pushes `row FixedSizeList<float32>`. Down
come the rows; or, to one who told versions, `position uint32`, `version uint32` and `row` of those that are newer; or
after a push the number of rows that arrived. Packed rows are FixedSizeList<float16>, see `half`. Everything else is a
Flight action with a JSON body and a JSON answer. No pickle, no code travels.

Caveat: Flight lets a stream whose connection broke look like one that ended. So each side counts: the command says how
many keys come, and an answer that falls short is a lost one.
"""

import functools
import json

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.snapshot import key_array, row_array, row_blocks
from ctr_trainer.embedding.versions import Newer
from ctr_trainer.errors import UserError

KEYS = pa.schema([pa.field("key", pa.int64(), nullable=False)])
_VERSION = pa.field("version", pa.uint32(), nullable=False)
KEYS_AND_VERSIONS = pa.schema([*KEYS, _VERSION])
INCARNATION = "ctr-trainer-incarnation"
TOKEN = "authorization"
# How the messages of the service's own errors begin: see `incarnation` and `lease`.
RESTARTED, REPLACED, HELD = "restarted", "replaced: ", "held: "
# What the service takes in one request; a trainer's requests are far below it.
MOST_BYTES = 1 << 30
# A request of a trainer fits into one message, which is read without a copy, wherever its bytes lie.
_MESSAGE_BYTES = 32 << 20
# Made once: the defaults look into the environment each time.
_OPTIONS = pa.ipc.IpcWriteOptions(use_threads=False)
# In the metadata of the schema of newer rows.
_COUNT = b"ctr_trainer.count"
_NUMBER = b"ctr_trainer.version"


@functools.lru_cache(maxsize=256)
def keys_and_rows(width):
    """-> the schema of a push."""
    return pa.schema([*KEYS, *rows_only(width)])


@functools.lru_cache(maxsize=256)
def keys_versions_and_rows(width, packed):
    """-> the schema of a sync."""
    return pa.schema([*KEYS_AND_VERSIONS, *rows_only(width, packed)])


@functools.lru_cache(maxsize=256)
def rows_only(width, packed=False):
    """-> the schema of an answer."""
    item = pa.field("item", pa.float16() if packed else pa.float32(), nullable=False)
    return pa.schema([pa.field("row", pa.list_(item, width + packed), nullable=False)])


@functools.lru_cache(maxsize=256)
def newer_rows(width, packed):
    """-> the schema of an answer to one who told versions."""
    return pa.schema([pa.field("position", pa.uint32(), nullable=False), _VERSION, *rows_only(width, packed)])


def write_keys(writer, keys):
    """Sends int64[U]."""
    writer.begin(KEYS, _OPTIONS)
    writer.write_batch(pa.RecordBatch.from_arrays([key_array(keys)], schema=KEYS))


def write_keys_and_rows(writer, keys, rows):
    """Sends int64[U] and float32[U, width], in messages of bounded size."""
    schema = keys_and_rows(rows.shape[1])
    writer.begin(schema, _OPTIONS)
    for some_keys, some_rows in row_blocks(keys, rows, _MESSAGE_BYTES):
        writer.write_batch(pa.RecordBatch.from_arrays([key_array(some_keys), row_array(some_rows)], schema=schema))


def write_versions(writer, keys, versions, rows=None):
    """Sends int64[U], uint32[U] and, of a sync, float32[U, width] or float16[U, width + 1]."""
    if rows is None:
        _write(writer, KEYS_AND_VERSIONS, [keys, versions])
    else:
        packed = rows.dtype == np.float16
        _write(writer, keys_versions_and_rows(rows.shape[1] - packed, packed), [keys, versions, rows])


def write_newer(writer, newer):
    """Sends a `versions.Newer`. The keys of a sync that are not in it have one version, which goes along."""
    packed = newer.rows.dtype == np.float16
    schema = newer_rows(newer.rows.shape[1] - packed, packed)
    count, number = len(newer.positions), 0
    if count < len(newer.versions):
        left_out = np.flatnonzero(newer.positions != np.arange(count))
        number = newer.versions[left_out[0] if len(left_out) else count]
    schema = schema.with_metadata({_COUNT: str(count), _NUMBER: str(number)})
    columns = [newer.positions.astype(np.uint32), newer.versions[newer.positions], newer.rows]
    _write(writer, schema, columns)


def read_newer(reader, width, packed, known, is_sync):
    """Reads what `write_newer` sent, in answer to a question with the versions `known` uint32[U].

    Returns:
      `Newer`, its rows possibly unaligned.

    Raises:
      FlightUnavailableError: fewer rows came.
      UserError: something else came.
    """
    expected = newer_rows(width, packed)
    metadata = reader.schema.metadata or {}
    if reader.schema != expected or _COUNT not in metadata or _NUMBER not in metadata:
        raise UserError(f"the service answered with {reader.schema}, expected {expected}: another version?")
    count = int(metadata[_COUNT])
    positions, numbers, rows = _read(reader, expected, count, "the answer of newer rows")
    if len(rows) != count:
        raise flight.FlightUnavailableError(f"the answer was cut off after {len(rows)} rows of {count}")
    if count and positions.max() >= len(known):
        raise UserError(f"the service answered with row {positions.max()} of {len(known)} that were asked for")
    versions = np.full(len(known), int(metadata[_NUMBER]), np.uint32) if is_sync else known.copy()
    positions = positions.astype(np.int64)
    versions[positions] = numbers
    return Newer(versions, positions, rows)


def write_receipt(writer, count):
    """Sends that `count` rows were pushed."""
    write_keys(writer, np.array([count]))


def read_receipt(reader, count):
    """Reads what `write_receipt` sent.

    Raises:
      FlightUnavailableError: it did not come.
    """
    if reader.read_all().column("key").to_pylist() != [count]:
        raise flight.FlightUnavailableError("the answer was cut off")


def write_rows(writer, rows):
    """Sends float32[U, width]."""
    schema = rows_only(rows.shape[1])
    writer.begin(schema, _OPTIONS)
    step = max(_MESSAGE_BYTES // (4 * rows.shape[1]), 1)
    for first in range(0, len(rows), step):
        writer.write_batch(pa.RecordBatch.from_arrays([row_array(rows[first : first + step])], schema=schema))


def read_rows(reader, count, width):
    """Reads what `write_rows` sent. -> float32[count, width]

    Raises:
      FlightUnavailableError: fewer rows came.
      UserError: something else came.
    """
    if reader.schema != rows_only(width):
        raise UserError(f"the service answered with {reader.schema}, expected rows of {width} floats: another version?")
    rows, done = np.empty((count, width), np.float32), 0
    for chunk in reader:
        if chunk.data is None:
            continue
        part = chunk.data.column("row").flatten().to_numpy().reshape(-1, width)
        if done + len(part) > count:
            raise UserError(f"the service answered with more than the {count} rows that were asked for")
        rows[done : done + len(part)] = part
        done += len(part)
    if done != count:
        raise flight.FlightUnavailableError(f"the answer was cut off after {done} rows of {count}")
    return rows


def read_request(reader, table, count, expected):
    """Reads the `count` rows of a request.

    Args:
      expected: the schema that it must have.

    Returns:
      its columns, a list: int64[U], uint32[U], float32[U, width] or float16[U, width + 1]; rows may lie unaligned.

    Raises:
      UserError: a wrong type or width, missing values, another number of them, or more than MOST_BYTES.
    """
    schema = reader.schema
    if not schema.equals(expected) and (schema.names != expected.names or schema.types != expected.types):
        raise UserError(f"table {table}: request with {_types(schema)}, expected {_types(expected)}")
    columns = _read(reader, expected, count, f"table {table}: a request")
    if len(columns[0]) != count:
        came = len(columns[0])
        raise UserError(f"table {table}: {came} keys came of the {count} announced; the request was cut off")
    return columns


def to_json(value):
    """-> bytes."""
    return json.dumps(value).encode()


def from_json(data):
    """bytes -> dict.

    Raises:
      UserError: it is not a JSON object.
    """
    try:
        value = json.loads(bytes(data))
    except ValueError as error:
        raise UserError(f"a request that is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"a request that is not a JSON object but a {type(value).__name__}")
    return value


def _types(schema):
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _write(writer, schema, columns):
    """Sends columns of equal length in messages of bounded size."""
    writer.begin(schema, _OPTIONS)
    step = max(_MESSAGE_BYTES // sum(column[:1].nbytes for column in columns), 1) if len(columns[0]) else 1
    for first in range(0, len(columns[0]), step):
        arrays = [
            _array(column[first : first + step], field.type) for column, field in zip(columns, schema, strict=True)
        ]
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))


def _array(column, kind):
    """A C-contiguous array -> an Arrow array of the type `kind`, without a copy."""
    if column.ndim == 1:
        return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])
    flat = pa.Array.from_buffers(kind.value_type, column.size, [None, pa.py_buffer(column)])
    return pa.FixedSizeListArray.from_arrays(flat, type=kind)


def _read(reader, schema, count, what):
    """-> the columns of the batches that come, at most `count` rows of them; one batch is not copied."""
    parts, came, size = [], 0, 0
    for chunk in reader:
        batch = chunk.data
        if batch is None:
            continue
        batch.validate(full=True)
        part = [_numpy(column, what) for column in batch.columns]
        size += sum(column.nbytes for column in part)
        if size > MOST_BYTES:
            raise UserError(f"{what} of more than {MOST_BYTES} bytes; send fewer keys at a time")
        came += len(part[0])
        if came > count:
            raise UserError(f"{what} of {came} rows came, where {count} were announced")
        parts.append(part)
    if len(parts) == 1:
        # Not rows: they are many bytes, and what reads them takes them as they lie.
        return [np.require(column, requirements=("A",)) if column.ndim == 1 else column for column in parts[0]]
    if parts:
        return [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return [_numpy(pa.array([], kind), what) for kind in schema.types]


def _numpy(column, what):
    """-> the values of an Arrow array without a copy, of lists as [n, list_size]."""
    rows = column.flatten() if isinstance(column, pa.FixedSizeListArray) else column
    if column.null_count or rows.null_count:
        raise UserError(f"{what} with missing values")
    values = rows.to_numpy()
    return values if rows is column else values.reshape(len(column), column.type.list_size)
