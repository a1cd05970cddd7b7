"""Reads JSON objects as columns of raw values.

A value's key does not depend on the other messages that are read with it. An integer is read exactly, whatever its
column has elsewhere. A float that is a whole number below 2^53 is the same as the integer.
"""

import json
import math
import re
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from ctr_trainer.data.typed import Use, is_list

_SHOWN = 200  # Number of characters of a bad value in a message.
# Limits of a message, before it is parsed: its bytes, its values, and how deep they are nested.
_MOST_BYTES, _MOST_VALUES, _MOST_DEPTH = 4 << 20, 1 << 18, 100
_MOST_TOGETHER = 64 << 20  # Number of bytes that are parsed together.
_EXACT = 2**53  # float64 represents all whole numbers up to this one.
_MOST_DIGITS = 1000  # An integer of more digits is read as a text.
_SURROGATE = re.compile("[\ud800-\udfff]")
_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[\[{]|[\]}]', re.DOTALL)
_Read = tuple[pa.Table, np.ndarray, list[tuple[int, str]]]


class JsonReader:
    """Reads JSON objects as columns.

    Messages are parsed together with the types that the last columns had. If a message does not fit these types, or is
    not one JSON object, each message is parsed by itself. Both ways give the same values.
    """

    def __init__(self, wanted: dict[str, Use]) -> None:
        self._wanted = wanted
        self._schema: pa.Schema | None = None
        self._mark = secrets.token_hex(8)  # A column that numbers the messages. No message can contain it.

    def read(self, values: list[bytes]) -> Iterator[_Read]:
        """Yields (table, index of each row's JSON value, list of (index, reason) for bad values)."""
        if len(values) > 1 and sum(map(len, values)) > _MOST_TOGETHER:
            half = len(values) // 2
            for first, part in ((0, values[:half]), (half, values[half:])):
                for table, of, bad in self.read(part):
                    yield table, of + first, [(at + first, reason) for at, reason in bad]
            return
        wrong = _too_large(values)
        good = [number for number in range(len(values)) if number not in wrong]
        table = self._together([values[number] for number in good])
        if table is not None:
            yield table, np.array(good, np.int64), list(wrong.items())
            return
        found = {number: self._object(values[number]) for number in good}
        objects = {number: each for number, each in found.items() if isinstance(each, dict)}
        wrong |= {number: each for number, each in found.items() if isinstance(each, str)}
        # A text may be split into several values, and the texts of a list are not, so they need different columns.
        lists = [name for name, use in self._wanted.items() if use.several]
        groups: dict[tuple[bool, ...], list[int]] = {}
        for number, each in objects.items():
            groups.setdefault(tuple(isinstance(each[name], list) for name in lists), []).append(number)
        yield pa.table({}), np.empty(0, np.int64), list(wrong.items())
        for numbers in sorted(groups.values(), key=len):
            columns = {name: _column([objects[n][name] for n in numbers], use) for name, use in self._wanted.items()}
            table = pa.table(columns)
            self._schema = pa.schema([(field.name, _plain(field.type)) for field in table.schema])
            yield table, np.array(numbers, np.int64), []

    def _together(self, values: list[bytes]) -> pa.Table | None:
        """Parses messages of `_schema` together; None if they have to be parsed one by one."""
        if self._schema is None:
            return None
        start = b'{"%b":%%d,%%b' % self._mark.encode()
        numbered = b"\n".join([start % (n, each[1:]) for n, each in enumerate(values)])
        try:
            numbered.decode()
            table = pa.json.read_json(
                pa.BufferReader(numbered),
                read_options=pa.json.ReadOptions(use_threads=False, block_size=max(len(numbered) + 1, 1 << 16)),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=self._schema.append(pa.field(self._mark, pa.int64())),
                    newlines_in_values=True,
                    unexpected_field_behavior="ignore",
                ),
            )
        except (UnicodeDecodeError, pa.ArrowException):
            return None
        # Unless each message is one object, some numbers are missing, or there are objects without a number.
        numbers = table[self._mark].combine_chunks()
        is_whole = len(table) == len(values) and numbers.equals(pa.array(range(len(values)), pa.int64()))
        return table.drop_columns([self._mark]) if is_whole and all(map(_is_exact, table.columns[:-1])) else None

    def _object(self, value: bytes) -> dict[str, Any] | str:
        """Returns the wanted values of a message, or a description of what is wrong with it."""
        try:
            found = json.loads(value.decode(), object_pairs_hook=_Object, parse_int=_integer)
        except UnicodeDecodeError as error:
            return f"byte 0x{value[error.start]:02x} at position {error.start} is not UTF-8: {text_of(value)}"
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, _Object):
            return f"is not a JSON object: {text_of(value)}"
        values = {}
        for name, use in self._wanted.items():
            if name in found.repeated:
                return f"column {name!r} is there more than once: {text_of(value)}"
            each = values[name] = found.get(name)
            if isinstance(each, list) and not use.several and len(each) < 2:
                each = values[name] = each[0] if each else None
            parts = each if isinstance(each, list) and use.several else [each]
            if any(isinstance(part, (list, dict)) for part in parts):
                shown = text_of(json.dumps(each).encode())
                return f"column {name!r}: {shown} is not {'values' if use.several else 'one value'}, as {use.why} needs"
            # Other texts are valid, because the message is UTF-8.
            if b"\\u" in value and any(isinstance(part, str) and _SURROGATE.search(part) for part in parts):
                return f"column {name!r}: {text_of(json.dumps(each).encode())} has half of a surrogate pair"
        return values


class _Object(dict):
    """A JSON object. `repeated` has the names that it has several times."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        names = [name for name, _ in pairs] if len(pairs) > len(self) else []
        self.repeated = {name for name in names if names.count(name) > 1}


def _integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= _MOST_DIGITS else digits


def _too_large(values: list[bytes]) -> dict[int, str]:
    """Describes the messages that may not be parsed, because they would take much memory or stack."""
    found = {}
    for number, value in enumerate(values):
        if len(value) > _MOST_BYTES:
            found[number] = f"has {len(value)} bytes: expected at most {_MOST_BYTES} in a JSON object"
        # Each value except the first follows a comma or a bracket.
        elif len(value) > _MOST_VALUES and sum(map(value.count, (b",", b"[", b"{"))) > _MOST_VALUES:
            found[number] = f"has over {_MOST_VALUES} commas and brackets"
        elif len(value) > _MOST_DEPTH and value.count(b"[") + value.count(b"{") > _MOST_DEPTH and _is_deep(value):
            found[number] = f"is nested over {_MOST_DEPTH} levels deep"
    return found


def _is_deep(value: bytes) -> bool:
    depth = 0
    for each in _PARTS.finditer(value):
        depth += {b"[": 1, b"{": 1, b"]": -1, b"}": -1}.get(each[0], 0)
        if depth > _MOST_DEPTH:
            return True
    return False


def _is_exact(column: pa.ChunkedArray) -> bool:
    """Whether a column that was read as float64 has no integer that was rounded."""
    kind = column.type
    if is_list(kind):
        return _is_exact(pc.list_flatten(column))
    return not pa.types.is_floating(kind) or not pc.any(pc.greater_equal(pc.abs(column), float(_EXACT))).as_py()


def _plain(kind: pa.DataType) -> pa.DataType:
    """Returns the type by which the next messages are read."""
    if is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return pa.string() if pa.types.is_null(kind) else kind


def _column(values: list[Any], use: Use) -> pa.Array:
    """Converts parsed values to an Array. Values of several types become texts."""
    kinds = {type(each) for each in values} - {type(None)}
    if list in kinds:  # All values are lists or missing.
        lengths = [0, *(len(each or ()) for each in values)]
        flat = _column([part for each in values for part in each or ()], use)
        return pa.ListArray.from_arrays(pa.array(np.cumsum(lengths), pa.int32()), flat)
    if use.number and bool in kinds:
        values, kinds = (
            [int(each) if each is True or each is False else each for each in values],
            kinds - {bool} | {int},
        )
    if kinds == {int} or kinds == {int, float}:
        largest = max(abs(each) for each in values if type(each) is int)
        if largest < _EXACT and (use.number or float in kinds):
            return pa.array([each if each is None else float(each) for each in values], pa.float64())
        if kinds == {int} and largest < 2**63:
            return pa.array(values, pa.int64())
    elif len(kinds) < 2:
        return pa.array(values)
    return pa.array([_as_text(each) for each in values], pa.string())


def _as_text(value: Any) -> str | None:
    """Returns a value as the text whose key it has in a column of its type; see `data.typed`."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value):
            return None
        whole = value.is_integer() and abs(value) < _EXACT
        return str(int(value)) if whole else pa.scalar(value).cast(pa.string()).as_py()
    return value if value is None else str(value)


def text_of(value: bytes) -> str:
    """Returns the start of a bad value as text."""
    return repr(value[:_SHOWN].decode(errors="replace"))
