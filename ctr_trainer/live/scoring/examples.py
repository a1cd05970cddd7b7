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
import pyarrow.compute as pc

from ctr_trainer.live.publication.raw_inputs import NUMBER, RawFeature, RawInputs
from ctr_trainer.live.scoring.refusals import RequestRefused, shown
from ctr_trainer.settings.command_flags import ScoreLimits

# The explanation of the limits of bytes and values in messages.
LIMIT = "a limit that grows with max_examples"
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
        return cls(inputs, count, {f.name: column_of(f, [None] * n, 0, "{}") for f, n in lengths.items()}, context)

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
        columns = dict(self.columns)
        for name in self.context:
            value = columns[name]
            columns[name] = np.repeat(value, self.count) if isinstance(value, np.ndarray) else value * self.count
        return dataclasses.replace(self, columns=columns, context=frozenset())

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


def column_of(feature: RawFeature, values: Sequence[Any], most: int, where: str) -> Column:
    """Converts the JSON values of a feature.

    Args:
      most: the largest number of values in a list.
      where: the name of an example in messages, as `example {}`, with its number in place of the braces.

    Raises:
      RequestRefused: a value is wrong.
    """
    if feature.kind == NUMBER:
        for place, value in enumerate(values):
            if value is not None and (type(value) not in (float, int) or not _fits(value)):
                raise _refusal(feature, value, where.format(place))
        return np.array([math.nan if value is None else value for value in values], np.float32)
    if feature.is_list:
        return [_list(feature, value, most, where.format(place)) for place, value in enumerate(values)]
    found = np.empty(len(values), object)
    try:
        found[:] = list(map(str.encode, values))  # Nearly all columns contain only strings.
    except (TypeError, UnicodeEncodeError):
        for place, value in enumerate(values):
            found[place] = _bytes(feature, value, value, where.format(place))
    return found


def _array(column: Column) -> np.ndarray:
    """Returns a column as an array. Lists become object[B, N] of bytes, padded with b"" at the end."""
    if isinstance(column, np.ndarray):
        return column
    longest = max(map(len, column), default=0)
    out = np.full((len(column), longest), b"", object)
    for row, values in zip(out, column, strict=True):
        row[: len(values)] = values
    return out


def of_arrow(feature: RawFeature, column: pa.Array, limits: ScoreLimits, where: str) -> Column:
    """Converts the Arrow column of a feature, see `request_forms.of_flight`. For `where`, see `column_of`."""
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
        raise _refusal(feature, "inf", where.format(int(np.isinf(values).argmax())))
    return values


def _refusal(feature: RawFeature, value: object, where: str, expected: str | None = None) -> RequestRefused:
    return RequestRefused(f"{where}, feature {feature.name!r}: {shown(value)} is not {expected or feature.expected}")


def _list(feature: RawFeature, value: Any, most: int, where: str) -> list[bytes]:
    """Converts a list of texts, or null. If the feature has weights, checks that each is a number."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _refusal(feature, value, where)
    if len(value) > most:
        raise RequestRefused(
            f"{where}, feature {feature.name!r}: {len(value)} values, above the {most} of max_list_length"
        )
    found = [_bytes(feature, each, value, where) for each in value]
    if feature.separator is not None:
        for each in found:
            _, has_weight, weight = each.rpartition(feature.separator.encode())
            if has_weight and not (_WEIGHT.fullmatch(weight) and _fits(float(weight))):
                raise _refusal(feature, each.decode(errors="replace"), where, "a text whose weight is a number")
    return found


def _fits(value: float) -> bool:
    try:
        return math.isnan(value) or abs(float(value)) <= _MOST
    except OverflowError:
        return False


def _bytes(feature: RawFeature, value: object, whole: object, where: str) -> bytes:
    """Converts a text, which is `whole` or a part of it; messages show `whole`."""
    if value is None:
        return b""
    if isinstance(value, bytes):  # Of Arrow; JSON has none.
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise _refusal(feature, whole, where, "a text of whole characters") from None
    if type(value) is int:
        return str(value).encode()
    if isinstance(value, dict) and value.keys() == {"b64"}:
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise _refusal(feature, value, where, "base64") from None
    raise _refusal(feature, whole, where)
