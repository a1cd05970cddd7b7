"""Reads JSON objects as columns of raw values."""

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json

from ctr_trainer.data.typed import Use

_SAMPLE = 200  # Number of messages whose values determine the types of the columns.
_SHOWN = 200  # Number of characters of a bad value in a message.


class JsonReader:
    """Reads JSON objects as columns. The values in the first objects determine the types of the columns."""

    def __init__(self, wanted: dict[str, Use]) -> None:
        self._wanted = wanted
        self._schema: pa.Schema | None = None

    def read(self, values: list[bytes]) -> Iterator[tuple[pa.Table, np.ndarray, list[tuple[int, str]]]]:
        """Yields (table, index of each row's JSON value, list of (index, reason) for bad values)."""
        if self._schema is None:
            self._schema = self._schema_of([found for each in values[:_SAMPLE] if (found := _object(each))])
        try:
            table = pa.json.read_json(
                pa.BufferReader(b"\n".join(values)),
                read_options=pa.json.ReadOptions(use_threads=False, block_size=max(sum(map(len, values)) * 2, 1 << 16)),
                parse_options=pa.json.ParseOptions(
                    explicit_schema=self._schema, newlines_in_values=True, unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid:
            table = None
        if table is not None and len(table) == len(values):
            yield table, np.arange(len(values)), []
            return
        # If a value is not an object, or its type differs from earlier values, each value is parsed separately.
        objects = [_object(each) for each in values]
        wrong = []
        for number, found in enumerate(objects):
            problem = self._problem(found) if found is not None else f"is not a JSON object: {text_of(values[number])}"
            if problem:
                wrong.append((number, problem))
        bad = {number for number, _ in wrong}
        good = [number for number in range(len(values)) if number not in bad]
        whole = [found for number in good if (found := objects[number]) is not None]
        self._schema = self._schema_of(whole[-_SAMPLE:])
        columns = {name: _column([each.get(name) for each in whole]) for name in self._wanted}
        yield pa.table(columns), np.array(good, np.int64), wrong

    def _problem(self, found: dict[str, Any]) -> str:
        """Describes a value that is nested, or that has several elements although only one is allowed; "" if none."""
        for name, use in self._wanted.items():
            value = found.get(name)
            if isinstance(value, dict) or (isinstance(value, list) and not use.several and len(value) > 1):
                return f"column {name!r}: {text_of(json.dumps(value).encode())} is not one value, as {use.why} needs"
        return ""

    def _schema_of(self, objects: list[dict[str, Any]]) -> pa.Schema:
        fields = []
        for name, use in self._wanted.items():
            kind = _column([each.get(name) for each in objects]).type
            if pa.types.is_null(kind) or pa.types.is_binary(kind):
                kind = pa.string()
            if use.number and pa.types.is_integer(kind):
                kind = pa.float64()
            fields.append((name, kind))
        return pa.schema(fields)


def _column(values: list[Any]) -> pa.Array:
    """Converts parsed JSON values to an Array. Mixed types become texts; lists mixed with values become lists."""
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return pa.array(values)
    if any(isinstance(value, list) for value in values):
        lists = [[] if value is None else value if isinstance(value, list) else [value] for value in values]
        return pa.array([list(map(_as_text, each)) for each in lists])
    return pa.array([_as_text(value) for value in values])


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value)


def _object(value: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def text_of(value: bytes) -> str:
    """Returns the start of a bad value as text."""
    return repr(value[:_SHOWN].decode(errors="replace"))
