"""The examples of a request, or of several requests together, and the checks of their values."""

import base64
import binascii
import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.live.publication.raw_inputs import NUMBER, RawFeature, RawInputs
from ctr_trainer.live.scoring.refusals import RequestRefused, shown
from ctr_trainer.settings.command_flags import ScoreLimits

# The explanation of the limits of bytes and values in messages.
LIMIT = "a limit that grows with max_examples"
# f(number of an example in a request) -> the example's name in a message.
Where = Callable[[int], str]
_WEIGHT = re.compile(rb"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MOST = float(np.finfo(np.float32).max)
# float32[B] of numbers, object[B] of bytes, or B lists of bytes.
Column = np.ndarray | list[list[bytes]]


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples with checked raw values.

    Attributes:
      inputs: the features against which the values were checked.
      context: names of the features whose column has a single value, which all examples share.
    """

    inputs: RawInputs
    count: int
    columns: Mapping[str, Column]
    context: frozenset[str] = frozenset()

    @classmethod
    def missing(cls, inputs: RawInputs, count: int, has_context: bool = False) -> "Examples":
        """Returns examples whose values are all missing. The context, if any, has all features except the first."""
        context = frozenset(f.name for f in inputs.features[1:]) if has_context else frozenset()
        lengths = {f: 1 if f.name in context else count for f in inputs.features}
        return cls(inputs, count, {f.name: column_of(f, [None] * n, 0) for f, n in lengths.items()}, context)

    @classmethod
    def merged(cls, parts: Sequence["Examples"]) -> "Examples":
        """Concatenates the examples of parts, each of which `may_join` the others."""
        if len(parts) == 1:
            return parts[0]
        columns: dict[str, Column] = {}
        for feature in parts[0].inputs.features:
            values = [part.columns[feature.name] for part in parts]
            columns[feature.name] = list(itertools.chain(*values)) if feature.is_list else np.concatenate(values)
        return cls(parts[0].inputs, sum(part.count for part in parts), columns)

    def may_join(self, other: "Examples") -> bool:
        """Whether these examples can be merged with others: both have no context, and the same `inputs`."""
        return self.inputs == other.inputs and not self.context and not other.context

    def expanded(self) -> "Examples":
        """Returns the same examples, each with its own copy of the context's values."""
        shared = {name: _repeated(self.columns[name], self.count) for name in self.context}
        return dataclasses.replace(self, columns={**self.columns, **shared}, context=frozenset())

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """The number of values per example of each feature in `arrays`; for lists, the length of the longest list."""
        return tuple(max(map(len, self.columns[f.name]), default=0) if f.is_list else 1 for f in self.inputs.features)

    @property
    def values(self) -> int:
        """The number of values in all arrays of `arrays`, with a value of the context counted once per example."""
        return self.count * sum(self.widths)

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the inputs of an exported graph by feature name: float32[B], string[B] or string[B, N].

        B is 1 for a feature of the context.
        """
        return {f.name: _array(self.columns[f.name]) for f in self.inputs.features}


def _example(place: int) -> str:
    return f"example {place}"


def column_of(feature: RawFeature, values: Sequence[Any], most: int, where: Where = _example) -> Column:
    """Converts the JSON values of a feature. A list may have at most `most` values."""
    if feature.kind == NUMBER:
        return _numbers(feature, values, where)
    if feature.is_list:
        return _lists(feature, values, most, where)
    return _json_texts(feature, values, where)


def _repeated(column: Column, count: int) -> Column:
    return np.repeat(column, count) if isinstance(column, np.ndarray) else column * count


def _array(column: Column) -> np.ndarray:
    """Returns a column as an array. Lists become object[B, N] of bytes, padded with b"" at the end."""
    if isinstance(column, np.ndarray):
        return column
    longest = max(map(len, column), default=0)
    out = np.full((len(column), longest), b"", object)
    for row, values in zip(out, column, strict=True):
        row[: len(values)] = values
    return out


def of_arrow(feature: RawFeature, column: pa.Array, limits: ScoreLimits, where: Where) -> Column:
    """Converts the Arrow column of a feature, see `request_forms.of_flight`."""
    if feature.kind != NUMBER:
        try:
            return column_of(feature, column.to_pylist(), limits.max_list_length, where)
        except (ValueError, OverflowError) as error:  # A text that is not UTF-8, or a time that Python does not have.
            raise RequestRefused(f"column {feature.name!r}: {error}: expected {feature.expected}") from None
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
        raise RequestRefused(f"column {feature.name!r}: type {kind}: expected {feature.expected}")
    values = pc.cast(column, pa.float32(), safe=False).to_numpy(zero_copy_only=False)
    if np.isinf(values).any():
        raise _refuse(feature, "inf", int(np.isinf(values).argmax()), where)
    return values


def _refuse(
    feature: RawFeature, value: object, place: int, where: Where, expected: str | None = None
) -> RequestRefused:
    """Returns the error for a value of example number `place`. `expected` replaces the description of the feature."""
    wanted = expected or feature.expected
    return RequestRefused(f"{where(place)}, feature {feature.name!r}: {shown(value)} is not {wanted}")


def _numbers(feature: RawFeature, values: Sequence[Any], where: Where) -> np.ndarray:
    """Returns a column of JSON numbers as float32[B], NaN for null. Refuses a value that is not a float32 number."""
    for place, value in enumerate(values):
        if value is not None and (type(value) not in (float, int) or not _fits(value)):
            raise _refuse(feature, value, place, where)
    return np.array([math.nan if value is None else value for value in values], np.float32)


def _json_texts(feature: RawFeature, values: Sequence[Any], where: Where) -> np.ndarray:
    """Returns a column of JSON texts as object[B] of bytes, b"" for null. Refuses a value that is not a text."""
    found = np.empty(len(values), object)
    try:
        found[:] = list(map(str.encode, values))  # Nearly all columns contain only strings.
    except (TypeError, UnicodeEncodeError):
        for place, value in enumerate(values):
            found[place] = _bytes(feature, value, value, place, where)
    return found


def _lists(feature: RawFeature, values: Sequence[Any], most: int, where: Where) -> list[list[bytes]]:
    """Returns a column of JSON lists, each of at most `most` values, as lists of bytes; [] for null.

    Raises:
      RequestRefused: a value is not a list of texts, a list has more values, or a weight is not a number.
    """
    found = []
    for place, value in enumerate(values):
        if value is None:
            value = []
        if not isinstance(value, list):
            raise _refuse(feature, value, place, where)
        _check_length(feature, len(value), place, most, where)
        found.append([_bytes(feature, each, value, place, where) for each in value])
    _check_weights(feature, found, where)
    return found


def _check_length(feature: RawFeature, length: int, place: int, most: int, where: Where) -> None:
    """Refuses a list of example `place` that has more than `most` values."""
    if length > most:
        said = f"{length} values, above the {most} of max_list_length"
        raise RequestRefused(f"{where(place)}, feature {feature.name!r}: {said}")


def _check_weights(feature: RawFeature, values: Sequence[Sequence[bytes]], where: Where) -> None:
    """Refuses lists of bytes in which a weight is not a number, if the feature has weights."""
    if feature.separator is None:
        return
    separator = feature.separator.encode()
    for place, value in enumerate(values):
        for each in value:
            _, has_weight, weight = each.rpartition(separator)
            if has_weight and not (_WEIGHT.fullmatch(weight) and _fits(float(weight))):
                raise _refuse(feature, each.decode(errors="replace"), place, where, "a text whose weight is a number")


def _fits(value: float) -> bool:
    try:
        return math.isnan(value) or abs(float(value)) <= _MOST
    except OverflowError:
        return False


def _bytes(feature: RawFeature, value: object, whole: object, place: int, where: Where) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):  # Of Arrow; JSON has none.
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise _refuse(feature, whole, place, where, "a text of whole characters") from None
    if type(value) is int:
        return str(value).encode()
    if isinstance(value, dict) and value.keys() == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise _refuse(feature, value, place, where, "base64") from None
    raise _refuse(feature, whole, place, where)
