"""The examples of a request, or of several requests together, and the checks of their values."""

import base64
import binascii
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ctr_trainer.export.raw_inputs import DIGITS, NUMBER, TEXT, RawColumn, RawInputs
from ctr_trainer.live.scoring.refusals import RequestRefused, shown
from ctr_trainer.settings.command_flags import ScoreLimits

# The explanation of the limits of bytes and values in messages.
LIMIT = "a limit that grows with max_examples"
_WEIGHT = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MOST = float(np.finfo(np.float32).max)
# B numbers or None, B texts, or B lists of texts.
Column = np.ndarray | list[Any]


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples with checked raw values.

    Attributes:
      inputs: the columns against which the values were checked.
      context: names of the columns with a single value, which all examples share.
    """

    inputs: RawInputs
    count: int
    columns: Mapping[str, Column]
    context: frozenset[str] = frozenset()

    @classmethod
    def missing(cls, inputs: RawInputs, count: int, has_context: bool = False) -> "Examples":
        """Returns examples whose values are all missing. The context, if any, has all columns except the first."""
        context = frozenset(f.name for f in inputs.columns[1:]) if has_context else frozenset()
        lengths = {f: 1 if f.name in context else count for f in inputs.columns}
        return cls(inputs, count, {f.name: column_of(f, [None] * n, 0, "{}") for f, n in lengths.items()}, context)

    @classmethod
    def merged(cls, parts: Sequence["Examples"]) -> "Examples":
        """Concatenates the examples of parts, each of which `may_join` the others."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Column] = {}
        for raw in parts[0].inputs.columns:
            columns[raw.name] = [*itertools.chain.from_iterable([part.columns[raw.name] for part in parts])]
        return cls(parts[0].inputs, sum(part.count for part in parts), columns)

    def may_join(self, other: "Examples") -> bool:
        """Whether these examples can be merged with others: both have no context, and the same `inputs`."""
        return self.inputs == other.inputs and not self.context and not other.context

    def expanded(self) -> "Examples":
        """Returns the same examples, each with its own copy of the context's values."""
        columns = dict(self.columns)
        for name in self.context:
            columns[name] = [*columns[name]] * self.count
        return dataclasses.replace(self, columns=columns, context=frozenset())

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """The number of values per example of each column of `RawInputs.varying`: the length of the longest list.

        A text that the graph splits counts as its longest list.
        """
        return tuple(_width(each, self.columns[each.name]) for each in self.inputs.varying)

    @property
    def values(self) -> int:
        """The number of values in all arrays of `arrays`, with a value of the context counted once per example."""
        return self.count * (self.inputs.fixed + sum(self.widths))

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the inputs of an exported graph by column name: float32[B], string[B] or string[B, N].

        B is 1 for a column of the context.
        """
        return {f.name: _array(f, self.columns[f.name]) for f in self.inputs.columns}


def column_of(raw: RawColumn, values: Sequence[Any], most: int, where: str) -> Column:
    """Converts the JSON values of a column.

    Args:
      most: the largest number of values in a list.
      where: the name of an example in messages, as `example {}`, with its number in place of the braces.

    Raises RequestRefused: a value is wrong.
    """
    if raw.kind == NUMBER:
        for place, value in enumerate(values):
            is_number = type(value) in (float, int) and (-_MOST <= value <= _MOST or value != value)
            if value is not None and not is_number:
                raise _refusal(raw, value, where.format(place))
        return [*values]
    if raw.is_list:
        return [_list(raw, value, most, where.format(place)) for place, value in enumerate(values)]
    try:
        return [*map(str.encode, values)]  # Nearly all columns contain only strings.
    except (TypeError, UnicodeEncodeError):
        return [_bytes(raw, value, value, where.format(place)) for place, value in enumerate(values)]


def _width(raw: RawColumn, values: Column) -> int:
    if raw.is_list:
        return max(map(len, values), default=0)
    counts = (max((text.count(each.encode()) for text in values), default=0) for each in raw.splits)
    return 1 + sum(counts)


def _array(raw: RawColumn, column: Column) -> np.ndarray:
    """Returns a column as an array. Lists become object[B, N] of bytes, padded with b"" at the end."""
    if raw.kind == NUMBER:
        return np.array(column, np.float32)  # A None becomes NaN.
    if not raw.is_list:
        texts = np.empty(len(column), object)
        texts[:] = column
        return texts
    longest = max(map(len, column), default=0)
    out = np.full((len(column), longest), b"", object)
    for row, values in zip(out, column, strict=True):
        row[: len(values)] = values
    return out


def arrow_column(raw: RawColumn, column: pa.Array, limits: ScoreLimits, where: str) -> Column:
    """Converts the Arrow array of a column, see `request_forms.of_arrow`. For `where`, see `column_of`."""
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = column.type
    if raw.kind == TEXT and kind in (pa.string(), pa.binary()):
        texts = column.view(pa.binary())
        return (texts.fill_null(b"") if texts.null_count else texts).to_numpy(zero_copy_only=False)
    if raw.kind != NUMBER:
        try:
            return column_of(raw, column.to_pylist(), limits.max_list_length, where)
        except (ValueError, OverflowError) as error:  # A text that is not UTF-8, or a time that Python does not have.
            raise RequestRefused(f"column {raw.name!r}: {error}: expected {raw.expected}") from None
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise RequestRefused(f"column {raw.name!r}: type {kind}: expected {raw.expected}")
    with np.errstate(over="ignore"):
        values = column.to_numpy(zero_copy_only=False).astype(np.float32)
    if np.isinf(values).any():
        raise _refusal(raw, "inf", where.format(int(np.isinf(values).argmax())))
    return values


def _refusal(raw: RawColumn, value: object, where: str, expected: str | None = None) -> RequestRefused:
    return RequestRefused(f"{where}, column {raw.name!r}: {shown(value)} is not {expected or raw.expected}")


def _list(raw: RawColumn, value: Any, most: int, where: str) -> list[bytes]:
    """Converts a list of texts, or null. If the column has weights, checks that each is a number."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _refusal(raw, value, where)
    if len(value) > most:
        raise RequestRefused(f"{where}, column {raw.name!r}: {len(value)} values, above the {most} of max_list_length")
    found = [_bytes(raw, each, value, where) for each in value]
    if raw.separator is not None:
        for each in found:
            _, has_weight, weight = each.rpartition(raw.separator.encode())
            if has_weight and not (_WEIGHT.fullmatch(weight) and _fits(float(weight))):
                raise _refusal(raw, each.decode(errors="replace"), where, "a text whose weight is a number")
    return found


def _fits(value: float) -> bool:
    try:
        return math.isnan(value) or abs(float(value)) <= _MOST
    except OverflowError:
        return False


def _bytes(raw: RawColumn, value: object, whole: object, where: str) -> bytes:
    """Converts a text, which is `whole` or a part of it; messages show `whole`."""
    if value is None:
        return b""
    if isinstance(value, bytes):  # Of Arrow; JSON has none.
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise _refusal(raw, whole, where, "a text of whole characters") from None
    if raw.kind == DIGITS and isinstance(value, float) and _fits(value):
        return b"" if math.isnan(value) else np.format_float_positional(value, trim="-").encode()
    if type(value) is int:
        return str(value).encode()
    if isinstance(value, dict) and value.keys() == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise _refusal(raw, value, where, "base64") from None
    raise _refusal(raw, whole, where)
