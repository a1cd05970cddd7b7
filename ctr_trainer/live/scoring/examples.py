"""The examples of a request, or of several requests together, and the checks of their values."""

import base64
import binascii
import contextlib
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ctr_trainer.export.raw_inputs import DIGITS, NUMBER, TEXT, RawColumn, RawInputs, by_kind
from ctr_trainer.live.scoring.refusals import RequestRefused, shown
from ctr_trainer.settings.command_flags import ScoreLimits

# The explanation of the limits of bytes and values in messages.
LIMIT = "a limit that grows with max_examples"
_WEIGHT = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MOST = float(np.finfo(np.float32).max)
_NUMBERS = {float, int, type(None)}
Given = Mapping[str, Sequence[Any]]  # The JSON values of columns by name.


@dataclasses.dataclass(frozen=True)
class Block:
    """The values of columns of one kind, see `by_kind`.

    Attributes:
      values: float32[columns, B] numbers, NaN if missing; or object[columns, B], each a bytes or a list of bytes.
    """

    columns: tuple[RawColumn, ...]
    values: np.ndarray


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples with checked raw values.

    Attributes:
      inputs: the columns against which the values were checked.
      blocks: the values; B is `count`, or 1 for columns of the context, which have blocks of their own.
      context: names of the columns with a single value, which all examples share.
    """

    inputs: RawInputs
    count: int
    blocks: tuple[Block, ...]
    context: frozenset[str] = frozenset()

    @classmethod
    def missing(cls, inputs: RawInputs, count: int, has_context: bool = False) -> "Examples":
        """Returns examples whose values are all missing. The context, if any, has all columns except the first."""
        shared = inputs.columns[1:] if has_context else ()
        parts = (1, by_kind(shared)), (count, by_kind(inputs.columns[: len(inputs.columns) - len(shared)]))
        blocks = [
            block_of(kind, {f.name: [None] * size for f in kind}, 0, "{}") for size, kinds in parts for kind in kinds
        ]
        return cls(inputs, count, tuple(blocks), frozenset(f.name for f in shared))

    @classmethod
    def merged(cls, parts: Sequence["Examples"]) -> "Examples":
        """Concatenates the examples of parts, each of which `may_join` the others."""
        if len(parts) == 1:
            return parts[0]
        blocks = [
            Block(block.columns, np.concatenate([part.blocks[place].values for part in parts], 1))
            for place, block in enumerate(parts[0].blocks)
        ]
        return cls(parts[0].inputs, sum(part.count for part in parts), tuple(blocks))

    def may_join(self, other: "Examples") -> bool:
        """Whether these examples can be merged with others: both have no context, and the same `inputs`."""
        return self.inputs == other.inputs and not self.context and not other.context

    def expanded(self) -> "Examples":
        """Returns the same examples, each with its own copy of the context's values."""
        blocks = [
            Block(block.columns, np.repeat(block.values, self.count, 1))
            if block.columns[0].name in self.context
            else block
            for block in self.blocks
        ]
        return dataclasses.replace(self, blocks=tuple(blocks), context=frozenset())

    @functools.cached_property
    def columns(self) -> dict[str, np.ndarray]:
        """The values of each column: float32[B], or object[B], each a bytes or a list of bytes."""
        return {f.name: row for block in self.blocks for f, row in zip(block.columns, block.values, strict=True)}

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

        B is 1 for a column of the context. Lists are padded with b"" at the end.
        """
        lists = {f.name: _padded(self.columns[f.name]) for f in self.inputs.varying if f.is_list}
        return {**self.columns, **lists}


def block_of(kind: tuple[RawColumn, ...], given: Given, most: int, where: str) -> Block:
    """Converts the JSON values of columns of one kind.

    Args:
      most: the largest number of values in a list.
      where: the name of an example in messages, as `example {}`, with its number in place of the braces.

    Raises RequestRefused: a value is wrong.
    """
    columns = [given[f.name] for f in kind]
    if kind[0].kind == NUMBER:
        return Block(kind, _numbers(kind, columns, where))
    values = np.empty(len(kind) * len(columns[0]), object)
    if kind[0].is_list:
        of_columns = zip(kind, columns, strict=True)
        lists = (_list(raw, each, most, where.format(n)) for raw, column in of_columns for n, each in enumerate(column))
        for place, value in enumerate(lists):
            values[place] = value  # An assignment of all would take lists of one length for an axis.
    else:
        values[:] = _texts(kind, columns, where)
    return Block(kind, values.reshape(len(kind), -1))


def _texts(kind: Sequence[RawColumn], columns: Sequence[Sequence[Any]], where: str) -> list[bytes]:
    """Converts texts, column by column."""
    try:
        return [*map(str.encode, itertools.chain.from_iterable(columns))]  # Mostly, there are only strings.
    except (TypeError, UnicodeEncodeError):
        if len(kind) > 1:  # One column with a null does not make the others slow.
            of_columns = zip(kind, columns, strict=True)
            return [text for raw, column in of_columns for text in _texts([raw], [column], where)]
        return [
            b"" if value is None else _bytes(kind[0], value, value, where.format(place))
            for place, value in enumerate(columns[0])
        ]


def _numbers(kind: Sequence[RawColumn], columns: Sequence[Sequence[Any]], where: str) -> np.ndarray:
    """Converts float32[columns, B] numbers."""
    if _NUMBERS.issuperset(map(type, itertools.chain.from_iterable(columns))):
        with contextlib.suppress(OverflowError):
            values = np.array(columns, np.float64)  # A None becomes NaN.
            if not (np.abs(values) > _MOST).any():
                return values.astype(np.float32)
    raise next(
        _refusal(raw, value, where.format(place))
        for raw, column in zip(kind, columns, strict=True)
        for place, value in enumerate(column)
        if not (value is None or type(value) in _NUMBERS and (value != value or -_MOST <= value <= _MOST))
    )


def _width(raw: RawColumn, values: np.ndarray) -> int:
    if raw.is_list:
        return max(map(len, values), default=0)
    counts = (max((text.count(each.encode()) for text in values), default=0) for each in raw.splits)
    return 1 + sum(counts)


def _padded(lists: np.ndarray) -> np.ndarray:
    """Returns object[B, N] of bytes of lists, object[B]."""
    longest = max(map(len, lists), default=0)
    out = np.full((len(lists), longest), b"", object)
    for row, values in zip(out, lists, strict=True):
        row[: len(values)] = values
    return out


def arrow_block_of(
    kind: tuple[RawColumn, ...], given: Mapping[str, pa.Array], limits: ScoreLimits, where: str
) -> Block:
    """Converts Arrow arrays of columns of one kind, see `request_forms.of_arrow`. For `where`, see `block_of`."""
    if kind[0].is_list:
        return block_of(kind, {f.name: _python(f, given[f.name]) for f in kind}, limits.max_list_length, where)
    convert = _arrow_numbers if kind[0].kind == NUMBER else _arrow_texts
    return Block(kind, np.stack([convert(f, given[f.name], where) for f in kind]))


def _arrow_numbers(raw: RawColumn, column: pa.Array, where: str) -> np.ndarray:
    """Converts an Arrow array to float32[B]."""
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise RequestRefused(f"column {raw.name!r}: type {kind}: expected {raw.expected}")
    with np.errstate(over="ignore"):
        values = column.to_numpy(zero_copy_only=False).astype(np.float32)
    if np.isinf(values).any():
        raise _refusal(raw, "inf", where.format(int(np.isinf(values).argmax())))
    return values


def _arrow_texts(raw: RawColumn, column: pa.Array, where: str) -> np.ndarray:
    """Converts an Arrow array to object[B] of bytes."""
    column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    if column.type in (pa.string(), pa.binary()) and raw.kind == TEXT:
        texts = column.view(pa.binary())
        return (texts.fill_null(b"") if texts.null_count else texts).to_numpy(zero_copy_only=False)
    return np.array(_texts([raw], [_python(raw, column)], where), object)


def _python(raw: RawColumn, column: pa.Array) -> list[Any]:
    try:
        return column.to_pylist()
    except (ValueError, OverflowError) as error:  # A text that is not UTF-8, or a time that Python does not have.
        raise RequestRefused(f"column {raw.name!r}: {error}: expected {raw.expected}") from None


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
