"""The format of requests and answers between a client and a service.

Each request is a Flight action with a JSON object. In a row request (`pull`, `put`, `sync`), the JSON is
followed by columns in their memory layout, little-endian, each at a multiple of 64 bytes:

    uint32 length of the JSON | JSON | columns: `key` int64[U], `version` uint32[U], `row` float32[U, lanes]

A client on the service's host may put the columns into shared memory (`row_requests.SentColumns`). Then the JSON
contains their address (`memory`) and their size (`bytes`), and nothing follows it.

`count` in the JSON is U, and the service knows the table's form, so a request takes no more memory than its bytes. The
answer is a JSON object and, for a `pull` or `sync`, in separate results, columns: `position` uint32, `version` uint32
and `row` of the rows newer than the client's. A `row` is in the table's form, see `row_form`. No pickle or code is
sent.

Caveat: in Flight, a stream whose connection broke looks like a stream that ended. So sizes are checked, and an answer
that is too short is treated as lost.
"""

import contextlib
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.service.lease import LeaseHeld
from ctr_trainer.embedding.store.versions import ChangedRows
from ctr_trainer.system.messages.errors import Lost, ServiceLost, UserError

TOKEN = "authorization"
# Prefixes of the messages of the service's own errors, see `incarnation`, `lease` and `errors.is_loss`.
RESTARTED, REPLACED, HELD, LOST = "restarted", "replaced: ", "held: ", "lost: "
# The most bytes of a request and of its answer, and the bytes that a trainer puts into one request.
MOST_BYTES = 128 << 20
PAGE_BYTES = 32 << 20
# An answer sends its columns in parts whose memory the allocator can reuse, because fresh pages cost more than the
# copy.
_PART_BYTES = 256 << 10
# The most bytes of JSON of a request, and of a `restore`, which has about 200 bytes for each of its files. Parsed, they
# may take up to thirty times as much memory.
MOST_JSON_BYTES, MOST_FILES_BYTES = 2 << 20, 16 << 20
_LENGTH = struct.Struct("<I")
_ALIGNMENT = 64
# Bytes in addition to each row: key and version in a request, position and version in its answer.
_BYTES_WITH_ROW = 12

# The dtype and the width of each column of a request; None for one dimension.
Layout = Sequence[tuple[str, int | None]]
KEYS, VERSIONS = ("<i8", None), ("<u4", None)
Body: TypeAlias = bytes | memoryview | np.ndarray | pa.Buffer


def rows_a_page(width: int) -> int:
    """Returns the number of rows of `width` floats that a trainer puts into one request."""
    return max(PAGE_BYTES // (4 * width + _BYTES_WITH_ROW), 1)


def pack(request: dict[str, Any], columns: Sequence[np.ndarray]) -> bytes:
    """Returns the bytes of a row request without `count`, with its columns, C-contiguous arrays of one length."""
    header = pack_header(request, len(columns[0]))
    parts: list[bytes | memoryview] = [header]
    size = len(header)
    for start, column in _placed(columns, size):
        parts += [bytes(start - size), column.data]
        size = start + len(column)
    return b"".join(parts)


def pack_header(request: dict[str, Any], count: int) -> bytes:
    """Returns the bytes of a row request of `count` rows without its columns."""
    header = to_json({**request, "count": count})
    return _LENGTH.pack(len(header)) + header


def columns_bytes(columns: Sequence[np.ndarray]) -> int:
    return max(start + len(column) for start, column in _placed(columns))


def put_columns(into: np.ndarray, columns: Sequence[np.ndarray]) -> None:
    """Copies columns to uint8[n] `into`, each to a multiple of 64 bytes, for `unpack_columns` with start 0."""
    for start, column in _placed(columns):
        into[start : start + len(column)] = column


def _placed(columns: Sequence[np.ndarray], size: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """Yields (first byte, uint8[n]) of each column, at multiples of 64 bytes from `size` on."""
    for column in map(_bytes, columns):
        size += -size % _ALIGNMENT
        yield size, column
        size += len(column)


def unpack_header(body: bytes | memoryview | pa.Buffer) -> tuple[dict[str, Any], int]:
    """Returns (dict, offset of the columns) of the bytes of a row request."""
    if len(body) < _LENGTH.size:
        raise UserError(f"a row request of {len(body)} bytes; it begins with the length of its JSON")
    (length,) = _LENGTH.unpack_from(body)
    if length > len(body) - _LENGTH.size:
        raise UserError(f"a row request of {len(body)} bytes, whose JSON should have {length}: it was cut off")
    end = _LENGTH.size + length
    return from_json(memoryview(body)[_LENGTH.size : end]), end


def unpack_columns(body: Body, start: int, table: str, count: int, layout: Layout) -> list[np.ndarray]:
    """Returns, from the offset `start`, the columns of a row request as views; two-dimensional ones may be unaligned.

    Raises UserError if the size does not match `count` and `layout`, or exceeds MOST_BYTES.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise UserError(f"table {table}: count is {count!r}, not a number of rows")
    if len(body) > MOST_BYTES:
        raise UserError(f"table {table}: a request of more than {MOST_BYTES} bytes; send fewer keys at a time")
    columns = []
    for dtype, width in layout:
        start += -start % _ALIGNMENT
        size = count * np.dtype(dtype).itemsize * (width or 1)
        if start + size > len(body):
            raise UserError(
                f"table {table}: {len(body)} bytes came, and {count} rows of {_described(layout)} are more: the "
                "request was cut off, or is of another table"
            )
        column = np.frombuffer(body, dtype, count * (width or 1), start)
        columns.append(np.require(column, requirements=("A",)) if width is None else column.reshape(count, width))
        start += size
    if start != len(body):
        raise UserError(f"table {table}: {len(body)} bytes came, and {count} rows of {_described(layout)} are {start}")
    return columns


def rows_of(lanes: int) -> tuple[str, int]:
    """Returns the layout of rows of `lanes` lanes."""
    return "<f4", lanes


def refuse_long_answer(table: str, count: int, lanes: int) -> None:
    """Raises UserError if the answer to a pull of rows of `lanes` lanes could have more than MOST_BYTES."""
    if count * (4 * lanes + _BYTES_WITH_ROW) > MOST_BYTES:
        raise UserError(
            f"table {table}: the answer for {count} keys could have more than {MOST_BYTES} bytes; "
            "ask for fewer keys at a time"
        )


def newer_answer(newer: ChangedRows) -> list[flight.Result]:
    """Returns the results for `ChangedRows`. The keys of a sync without a row share one version, which is sent once."""
    count, number = len(newer.positions), 0
    if count < len(newer.versions):
        left_out = np.flatnonzero(newer.positions != np.arange(count))
        number = newer.versions[left_out[0] if len(left_out) else count]
    columns = [newer.positions.astype(np.uint32), newer.versions[newer.positions], newer.rows]
    return answer({"count": count, "version": int(number)}, columns)


def read_done(results: Iterator[flight.Result]) -> None:
    """Reads the answer to a put. Raises FlightUnavailableError if it was cut off."""
    _read_answer(results, [])


def read_newer(results: Iterator[flight.Result], lanes: int, known: np.ndarray, is_sync: bool) -> ChangedRows:
    """Returns the `ChangedRows` that `newer_answer` made for a request with the versions `known`, uint32[U].

    Raises FlightUnavailableError if the answer was cut off.
    """
    header, (positions, numbers, rows) = _read_answer(results, [("<u4", None), VERSIONS, rows_of(lanes)])
    if len(positions) and positions.max() >= len(known):
        raise UserError(f"the service answered with row {positions.max()} of {len(known)} that were asked for")
    versions = np.full(len(known), header["version"], np.uint32) if is_sync else known.copy()
    positions = positions.astype(np.int64)
    versions[positions] = numbers
    return ChangedRows(versions, positions, rows)


@contextlib.contextmanager
def meanings(address: str) -> Iterator[None]:
    """Turns errors in answers of the service at `address` into the exceptions that they represent."""
    try:
        yield
    except flight.FlightServerError as error:
        raise _meant(address, error) from None
    except (flight.FlightUnauthenticatedError, pa.ArrowInvalid, KeyError) as error:
        raise UserError(f"embedding service {address}: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """Returns the message of an error without gRPC's context."""
    return str(error).split(". Detail:")[0].split(". gRPC client debug context")[0].splitlines()[0]


def _meant(address: str, error: flight.FlightServerError) -> Exception:
    """Returns the exception that the text of a service's error represents; returns other errors unchanged."""
    text = first_line(error)
    if text.startswith(RESTARTED):
        what = "was restarted: the updates since the last checkpoint are lost"
    elif text.startswith(REPLACED):
        what = f"has other rows now: {text.removeprefix(REPLACED)}. Updates since the last checkpoint are lost"
    elif text.startswith(HELD):
        return LeaseHeld(**json.loads(text.removeprefix(HELD)))
    elif text.startswith(LOST):
        return Lost(f"embedding service {address}: {text.removeprefix(LOST)}")
    else:
        return error
    return ServiceLost(f"embedding service {address} {what}. Restart the same command to resume from it")


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def from_json(data: bytes | memoryview | pa.Buffer, most: int = MOST_JSON_BYTES) -> dict:
    """Returns the dict of the JSON of a request.

    Raises UserError if it is not a JSON object, or has more than `most` bytes: the parsed JSON takes up to thirty times
    its bytes.
    """
    if len(memoryview(data)) > most:
        raise UserError(f"a request with {len(memoryview(data))} bytes of JSON: expected at most {most}")
    try:
        value = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise UserError(f"a request that is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"a request that is not a JSON object but a {type(value).__name__}")
    return value


def answer(header: dict[str, Any], columns: Sequence[np.ndarray] = ()) -> list[flight.Result]:
    """Returns the results of a row request; `count` in the header is the length of the columns."""
    results = [flight.Result(to_json(header))]
    for column in columns:
        column = _bytes(np.ascontiguousarray(column))
        parts = (column[first : first + _PART_BYTES] for first in range(0, len(column), _PART_BYTES))
        results += [flight.Result(pa.py_buffer(part)) for part in parts]
    return results


def _read_answer(results: Iterator[flight.Result], layout: Layout) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Returns (the JSON object, the columns) of an answer."""
    parts = (result.body for result in results)
    header = next(parts, None)
    if header is None:
        raise flight.FlightUnavailableError("the answer was cut off")
    header = from_json(header)
    return header, [_read_column(parts, header["count"], dtype, width) for dtype, width in layout]


def _read_column(parts: Iterator[pa.Buffer], count: int, dtype: str, width: int | None) -> np.ndarray:
    column, done = np.empty(count if width is None else (count, width), dtype), 0
    into = column.reshape(-1).view(np.uint8)
    while done < len(into):
        part = next(parts, None)
        if part is None:
            raise flight.FlightUnavailableError(f"the answer was cut off after {done} bytes of {len(into)}")
        if done + part.size > len(into):
            raise UserError(f"the service answered with more than the {len(into)} bytes expected: another version?")
        into[done : done + part.size] = np.frombuffer(part, np.uint8)
        done += part.size
    return column


def _bytes(column: np.ndarray) -> np.ndarray:
    """Returns uint8[n] of a C-contiguous array."""
    return column.reshape(-1).view(np.uint8)


def _described(layout: Layout) -> str:
    return ", ".join(dtype if width is None else f"{dtype}[{width}]" for dtype, width in layout)
