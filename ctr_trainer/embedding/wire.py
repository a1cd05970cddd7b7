"""What travels between the client and the service.

A row request is one Flight `do_exchange`: the descriptor's command is a JSON object, the batches up hold `key int64`
and, where the operation pushes, `row FixedSizeList<float32>`; the batches down hold the rows, or after a push the
number of rows that arrived. Everything else is a Flight action with a JSON body and a JSON answer. No pickle, no code
travels.

Caveat: Flight lets a stream whose connection broke look like one that ended. So each side counts: the command says how
many keys come, and an answer that falls short is a lost one.
"""

import json

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.snapshot import columns, key_array, row_array, row_blocks
from ctr_trainer.errors import UserError

KEYS = pa.schema([pa.field("key", pa.int64(), nullable=False)])
INCARNATION = "ctr-trainer-incarnation"
TOKEN = "authorization"
# What the service takes in one request; a trainer's requests are far below it.
MOST_BYTES = 1 << 30
_MESSAGE_BYTES = 4 << 20


def keys_and_rows(width):
    """-> the schema of a push."""
    return pa.schema([*KEYS, *rows_only(width)])


def rows_only(width):
    """-> the schema of an answer."""
    row = pa.list_(pa.field("item", pa.float32(), nullable=False), width)
    return pa.schema([pa.field("row", row, nullable=False)])


def write_keys(writer, keys):
    """Sends int64[U]."""
    writer.begin(KEYS)
    writer.write_batch(pa.RecordBatch.from_arrays([key_array(keys)], schema=KEYS))


def write_keys_and_rows(writer, keys, rows):
    """Sends int64[U] and float32[U, width], in messages that the other side can read while the next is sent."""
    schema = keys_and_rows(rows.shape[1])
    writer.begin(schema)
    for some_keys, some_rows in row_blocks(keys, rows, _MESSAGE_BYTES):
        writer.write_batch(pa.RecordBatch.from_arrays([key_array(some_keys), row_array(some_rows)], schema=schema))


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
    writer.begin(schema)
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


def read_request(reader, table, count, width=None):
    """Reads `count` keys of a pull, or keys and rows of a push where `width` is given.

    Returns:
      (int64[U], float32[U, width] or None)

    Raises:
      UserError: a wrong type or width, missing values, another number of them, or more than MOST_BYTES.
    """
    expected = KEYS if width is None else keys_and_rows(width)
    if reader.schema.names != expected.names or reader.schema.types != expected.types:
        raise UserError(f"table {table}: request with {_types(reader.schema)}, expected {_types(expected)}")
    keys, rows, size = [], [], 0
    for chunk in reader:
        batch = chunk.data
        if batch is None:
            continue
        batch.validate(full=True)
        size += batch.nbytes
        if size > MOST_BYTES:
            raise UserError(f"table {table}: a request of more than {MOST_BYTES} bytes; send fewer keys at a time")
        if any(column.null_count for column in batch.columns) or (width and batch.column("row").flatten().null_count):
            raise UserError(f"table {table}: request with missing values")
        if width is None:
            keys.append(batch.column("key").to_numpy())
        else:
            some_keys, some_rows = columns(batch)
            keys.append(some_keys)
            rows.append(some_rows)
    came = sum(map(len, keys))
    if came != count:
        raise UserError(f"table {table}: {came} keys came of the {count} announced; the request was cut off")
    if width is None:
        return _joined(keys, np.empty(0, np.int64)), None
    return _joined(keys, np.empty(0, np.int64)), _joined(rows, np.empty((0, width), np.float32))


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


def _joined(parts, empty):
    if len(parts) == 1:
        return np.require(parts[0], requirements=("C", "A"))
    return np.concatenate(parts) if parts else empty
