"""Reads untrusted Arrow IPC messages, and checks their sizes before anything is allocated.

pyarrow decompresses a batch while it reads it, and a few bytes of zstd can become gigabytes. The metadata of a message
contains the number of values, and each compressed buffer begins with its decompressed length. Both are checked first.
pyarrow does not check offsets, indices and texts while it reads them; `validate(full=True)` does.

Source: https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc
"""

import collections
import struct
from collections.abc import Collection

import flatbuffers
import flatbuffers.encode
import flatbuffers.number_types
import flatbuffers.table
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.typed import is_list, is_text
from ctr_trainer.system.messages.errors import UserError, cut

_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
# Limits of a schema: bytes and number of its names and metadata, and depth. They count each reference to a part,
# because a flatbuffer may refer to one part many times.
_MOST_SCHEMA_BYTES, _MOST_FIELDS, _MOST_DEPTH = 1 << 20, 10_000, 8
_FILE, _FILE_START = b"ARROW1", 8  # An IPC file has a stream after its first 8 bytes.
_ERRORS = (pa.ArrowException, struct.error, ArithmeticError, LookupError, TypeError, ValueError, OSError)
# Offsets of fields in the tables of Arrow's Message.fbs and Schema.fbs.
_HEADER_TYPE, _HEADER = 6, 8
_SCHEMA_FIELDS, _SCHEMA_METADATA = 6, 8
_FIELD_NAME, _FIELD_CHILDREN, _FIELD_METADATA = 4, 14, 16
_LENGTH, _NODES, _BUFFERS, _COMPRESSION = 4, 6, 8, 10
_DICTIONARY_DATA = 6


class BadArrow(UserError):
    """A message that is not valid Arrow, or that is too large."""


class TooMuchArrow(BadArrow):
    """A message that is too large."""


class ArrowMessages:
    """Reads whole streams, and checks equal schemas once.

    Args:
      most_bytes: limit of the decompressed bytes of all batches and dictionaries of a stream.
      most_values: limit of the values in them.
      limit: description of the limits for messages.
    """

    def __init__(self, most_bytes: int, most_values: int, limit: str) -> None:
        self._most_bytes, self._most_values, self._limit = most_bytes, most_values, limit
        self._checked = b""

    def read_all(self, value: bytes, columns: Collection[str] | None = None) -> pa.Table:
        """Returns the batches of a whole IPC stream or file. The limits apply to all its batches and dictionaries.

        `columns`: names of the columns to return; None for all. The types of others do not matter.

        Raises BadArrow: the stream is malformed or too large, or a column is there twice, or nested and no list.
        """
        try:
            stream = pa.py_buffer(value).slice(_FILE_START if value.startswith(_FILE) else 0)
            values = size = 0
            for message in pa.ipc.MessageReader.open_stream(stream):
                header = message.metadata.to_pybytes()
                kind, table = _header(header)
                if kind == _SCHEMA:
                    if header != self._checked:
                        _check_schema(table)
                    self._checked = header
                    continue
                found = _sizes(_data(table) if kind == _DICTIONARY else table, memoryview(message.body or b""))
                values, size = values + found[0], size + found[1]
                self._check("the message", values, size)
            with pa.BufferReader(stream) as file, pa.ipc.open_stream(file) as reader:
                found = reader.read_all()
                if not value.startswith(_FILE) and (rest := file.read().strip(b"\0")):
                    raise BadArrow(f"has {len(rest)} bytes after the end of its Arrow stream; expected one stream")
            if columns is not None:
                found = found.select([place for place, name in enumerate(found.schema.names) if name in columns])
            if len({*found.column_names}) < found.num_columns:
                name, count = collections.Counter(found.column_names).most_common(1)[0]
                raise BadArrow(f"has {count} columns named {cut(repr(name))}; rename all except one")
            self._check_contents(found)
            return found
        except _ERRORS as error:
            raise BadArrow(f"is not a valid Arrow IPC stream: {error}") from None

    def _check(self, what: str, values: int, size: int) -> None:
        if size > self._most_bytes:
            raise TooMuchArrow(
                f"{what} decoded: {size} bytes, over {self._most_bytes}, {self._limit}: send less at a time"
            )
        # A list counts as one value in addition to its texts, so the limit is doubled.
        if values > 2 * self._most_values:
            raise TooMuchArrow(f"{what}: {values} values, over {self._most_values}, {self._limit}: send less at a time")

    def _check_contents(self, rows: pa.Table) -> None:
        """Refuses invalid contents, and columns whose values refer to the same long texts again and again."""
        rows.validate()
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            try:
                column.validate(full=True)
                size = sum(map(_repeated_bytes, column.chunks))
            except ValueError as error:
                raise ValueError(f"column {name!r}: {error}") from None
            if size > self._most_bytes:
                raise TooMuchArrow(
                    f"column {name!r}: {size} bytes without its dictionary, over {self._most_bytes}, {self._limit}: "
                    "send less at a time"
                )


def _repeated_bytes(column: pa.Array) -> int:
    """Returns the bytes of texts that a column stores once, but may refer to several times."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _repeated_bytes(column.storage)
    if is_list(kind):
        return _repeated_bytes(column.flatten())
    if pa.types.is_nested(kind):  # Runs and views of lists may repeat their values, and no column needs the others.
        raise ValueError(f"has the type {kind}; expected single values, or lists of them")
    if pa.types.is_dictionary(kind):
        words = column.dictionary
        if pa.types.is_nested(words.type) or pa.types.is_dictionary(words.type):
            raise ValueError(f"has the type {kind}; expected a dictionary of single values")
        if not is_text(words.type):
            return 0
        return pc.sum(pc.take(pc.binary_length(words.cast(pa.large_binary())), column.indices)).as_py() or 0
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):  # A view begins with its length, an int32.
        lengths = np.frombuffer(column.buffers()[1] or b"", np.int32)[::4][column.offset : column.offset + len(column)]
        return int(lengths[column.is_valid().to_numpy(zero_copy_only=False)].sum(dtype=np.int64))
    return 0


def _header(header: bytes) -> tuple[int, flatbuffers.table.Table]:
    """Returns the kind of a message, and its table."""
    message = flatbuffers.table.Table(header, struct.unpack_from("<I", header, 0)[0])
    kind, table = _number(message, _HEADER_TYPE, "Uint8"), _child(message, _HEADER)
    if table is None:
        raise ValueError("a message has no header")
    if kind not in (_SCHEMA, _DICTIONARY, _BATCH):
        raise ValueError(f"a message has the type {kind}, which a stream of batches does not have")
    return kind, table


def _data(dictionary: flatbuffers.table.Table) -> flatbuffers.table.Table:
    data = _child(dictionary, _DICTIONARY_DATA)
    if data is None:
        raise ValueError("a dictionary has no values")
    return data


def _sizes(table: flatbuffers.table.Table, body: bytes | memoryview) -> tuple[int, int]:
    """Returns the number of values that a RecordBatch declares, and the decompressed bytes of its buffers."""
    values = _number(table, _LENGTH, "Int64")
    for place in _structs(table, _NODES):
        length, nulls = struct.unpack_from("<qq", table.Bytes, place)
        if length < 0 or nulls < 0:
            raise ValueError("a column has a negative length")
        values += length
    is_compressed = _child(table, _COMPRESSION) is not None
    size, least = 0, 0
    for place in _structs(table, _BUFFERS):
        offset, length = struct.unpack_from("<qq", table.Bytes, place)
        if offset < 0 or length < 0 or offset + length > len(body):
            raise ValueError("a buffer lies outside the body")
        # A correct writer's buffers do not overlap. Overlapping bytes would be decompressed more than once.
        least += length
        decoded = struct.unpack_from("<q", body, offset)[0] if is_compressed and length else -1
        if decoded < -1:
            raise ValueError("a buffer has a negative length")
        size += length if decoded < 0 else decoded
    if least > len(body):
        raise ValueError("buffers overlap")
    return values, size


def _check_schema(schema: flatbuffers.table.Table) -> None:
    """Refuses a schema that would take much memory, because pyarrow makes an object for each field and text."""
    left = [_MOST_FIELDS, _MOST_SCHEMA_BYTES]

    def take(count: int, size: int) -> None:
        left[0] -= count
        left[1] -= size
        if min(left) < 0:
            raise TooMuchArrow(
                f"a schema of over {_MOST_FIELDS} fields or {_MOST_SCHEMA_BYTES} bytes: send fewer columns"
            )

    def walk(table: flatbuffers.table.Table, children: int, metadata: int, depth: int) -> None:
        if depth > _MOST_DEPTH:
            raise ValueError(f"a column is nested over {_MOST_DEPTH} levels deep")
        for each in _tables(table, metadata):
            take(1, _text_length(each, 4) + _text_length(each, 6))
        for each in _tables(table, children):
            take(1, _text_length(each, _FIELD_NAME))
            walk(each, _FIELD_CHILDREN, _FIELD_METADATA, depth + 1)

    walk(schema, _SCHEMA_FIELDS, _SCHEMA_METADATA, 0)


def _number(table: flatbuffers.table.Table, field: int, kind: str) -> int:
    return table.GetSlot(field, 0, getattr(flatbuffers.number_types, f"{kind}Flags"))


def _child(table: flatbuffers.table.Table, field: int) -> flatbuffers.table.Table | None:
    place = table.Offset(field)
    return flatbuffers.table.Table(table.Bytes, table.Indirect(table.Pos + place)) if place else None


def _structs(table: flatbuffers.table.Table, field: int) -> range:
    """Returns the offsets of the 16-byte structs in a vector."""
    place = table.Offset(field)
    if not place:
        return range(0)
    first, count = table.Vector(place), table.VectorLen(place)
    if first + 16 * count > len(table.Bytes):
        raise ValueError("a vector lies outside its message")
    return range(first, first + 16 * count, 16)


def _tables(table: flatbuffers.table.Table, field: int) -> list[flatbuffers.table.Table]:
    place = table.Offset(field)
    if not place:
        return []
    first, count = table.Vector(place), table.VectorLen(place)
    if count > _MOST_FIELDS:
        raise TooMuchArrow(f"a schema of over {_MOST_FIELDS} fields: send fewer columns")
    return [flatbuffers.table.Table(table.Bytes, table.Indirect(first + 4 * i)) for i in range(count)]


def _text_length(table: flatbuffers.table.Table, field: int) -> int:
    place = table.Offset(field)
    return table.VectorLen(place) if place else 0
