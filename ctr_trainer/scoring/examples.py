"""Examples of a request, and of several requests together."""

import dataclasses
import functools
import json

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.flags.servers import ScoreLimits
from ctr_trainer.scoring import raw_inputs
from ctr_trainer.scoring.raw_inputs import NUMBER, RawFeature, RawInputs, RequestRefused, TooLarge

SIGNATURE = "serving_default"


@dataclasses.dataclass(frozen=True)
class Examples:
    """`count` examples of raw values that were checked.

    Attributes:
      inputs: the `RawInputs` that they were checked against.
      count: how many there are.
      columns: dict of feature name -> float32[B], object[B] of bytes, or list of B lists of bytes.
    """

    inputs: RawInputs
    count: int
    columns: dict

    @classmethod
    def of_json(cls, inputs: RawInputs, body: bytes, limits: ScoreLimits) -> tuple["Examples", bool]:
        """Returns the examples of the body of a request for predictions, and whether they came in the row form.

        Raises:
          RequestRefused: the body has neither form, or see `of_instances`.
        """
        # Each value but the first follows a comma or a bracket; an empty object takes thirty times its two characters.
        most = 2 * limits.max_values
        if len(body) > most and sum(map(body.count, (b",", b"[", b"{"))) > most:
            raise TooLarge(f"the body has over {most} commas and brackets (max_values): send fewer examples at a time")
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RequestRefused(f"the body is no JSON: {error}") from None
        if not isinstance(found, dict) or ("instances" in found) == ("inputs" in found):
            raise RequestRefused('the body is not {"instances": [...]} or {"inputs": {...}}, one of the two')
        if found.get("signature_name", SIGNATURE) != SIGNATURE:
            raise RequestRefused(f'"signature_name": there is {SIGNATURE!r} alone')
        if "instances" in found:
            return cls.of_instances(inputs, found["instances"], limits), True
        return cls.of_columns(inputs, found["inputs"], limits), False

    @classmethod
    def of_instances(cls, inputs, instances, limits):
        """-> the Examples of the row form: a list with one {feature: value} per example.

        A model with one feature takes a list of its values, too.

        Args:
          inputs: `RawInputs`.
          instances: from JSON.
          limits: `ScoreLimits`.

        Raises:
          RequestRefused: a feature is unknown or missing, a value is wrong, or there are too many.
        """
        if not isinstance(instances, list) or not instances:
            raise RequestRefused('"instances": expected a list of examples, as [{"feature": value, ...}]')
        _check_count(len(instances), limits)
        if len(inputs.features) == 1 and not any(isinstance(each, dict) for each in instances):
            return cls._checked(inputs, {inputs.features[0].name: instances}, len(instances), limits)
        for place, instance in enumerate(instances):
            if not isinstance(instance, dict):
                given = raw_inputs.shown(instance)
                raise RequestRefused(f'example {place}: {given} is not an object, as {{"feature": value, ...}}')
            inputs.check_names(instance, f"example {place}")
        columns = {f.name: [instance[f.name] for instance in instances] for f in inputs.features}
        return cls._checked(inputs, columns, len(instances), limits)

    @classmethod
    def of_columns(cls, inputs, columns, limits):
        """-> the Examples of the column form: {feature: list with one value per example}; see `of_instances`."""
        if not isinstance(columns, dict):
            if len(inputs.features) != 1 or not isinstance(columns, list):
                raise RequestRefused('"inputs": expected the columns, as {"feature": [value, ...], ...}')
            columns = {inputs.features[0].name: columns}
        inputs.check_names(columns, '"inputs"')
        first = inputs.features[0] if inputs.features else None
        for feature in inputs.features:
            values = columns[feature.name]
            if not isinstance(values, list) or not values:
                raise RequestRefused(
                    f"feature {feature.name!r}: {raw_inputs.shown(values)} is not a list with one value per example"
                )
            if len(values) != len(columns[first.name]):
                raise RequestRefused(
                    f"feature {feature.name!r}: {len(values)} values, and {first.name!r} has "
                    f"{len(columns[first.name])}: expected one value per example"
                )
        count = len(columns[first.name]) if first else 0
        _check_count(count, limits)
        return cls._checked(inputs, columns, count, limits)

    @classmethod
    def of_arrow(cls, inputs, batch, limits):
        """-> the Examples of a pyarrow RecordBatch with one column per feature; see `of_instances`.

        A number is of any numeric type; a text a string, binary or integer, plain or as a dictionary; a list a list of
        these. A null is a missing value.
        """
        inputs.check_names(batch.schema.names, "columns")
        _check_count(len(batch), limits)
        columns = {f.name: _of_arrow(f, batch[f.name], limits) for f in inputs.features}
        return cls(inputs, len(batch), columns)._within(limits)

    @classmethod
    def missing(cls, inputs, count):
        """-> Examples whose values are all missing."""
        empty = {f.name: [None] * count for f in inputs.features}
        return cls(inputs, count, {f.name: _column(f, empty[f.name], 0) for f in inputs.features})

    @classmethod
    def merged(cls, parts):
        """-> the Examples of several, one after the other; all have the same `inputs`."""
        if len(parts) == 1:
            return parts[0]
        columns = {}
        for feature in parts[0].inputs.features:
            of_parts = [part.columns[feature.name] for part in parts]
            joined = [value for column in of_parts for value in column] if feature.is_list else np.concatenate(of_parts)
            columns[feature.name] = joined
        return cls(parts[0].inputs, sum(part.count for part in parts), columns)

    @functools.cached_property
    def widths(self) -> tuple[int, ...]:
        """How many values an example has of each feature in `arrays`: of a list as many as the longest one."""
        return tuple(max(map(len, self.columns[f.name]), default=0) if f.is_list else 1 for f in self.features)

    def arrays(self):
        """-> dict of feature name -> float32[B], string[B] or string[B, N], as `receiver.ExportedFeatures` says."""
        return {f.name: _padded(self.columns[f.name]) if f.is_list else self.columns[f.name] for f in self.features}

    @property
    def features(self):
        """-> the `RawFeature`s."""
        return self.inputs.features

    @classmethod
    def _checked(cls, inputs, columns, count, limits):
        made = {f.name: _column(f, columns[f.name], limits.max_list_length) for f in inputs.features}
        return cls(inputs, count, made)._within(limits)

    def _within(self, limits: ScoreLimits) -> "Examples":
        """Returns these examples.

        Raises:
          TooLarge: their arrays would have too many values.
        """
        values = self.count * sum(self.widths)
        if values > limits.max_values:
            raise TooLarge(
                f"{self.count} examples have {values} values, each list as long as the longest of its feature, over "
                f"{limits.max_values} (max_values): send fewer examples at a time, or shorter lists"
            )
        return self


def _column(feature, values, most):
    if feature.kind == NUMBER:
        return raw_inputs.numbers(feature, values)
    return raw_inputs.lists(feature, values, most) if feature.is_list else raw_inputs.texts(feature, values)


def _check_count(count, limits):
    if not 0 < count <= limits.max_examples:
        raise RequestRefused(f"{count} examples: expected 1 to {limits.max_examples} (--max_examples)")


def _padded(rows):
    """-> object[B, N] of bytes, b"" behind the values of each row."""
    longest = max(map(len, rows), default=0)
    out = np.full((len(rows), longest), b"", object)
    for row, values in zip(out, rows, strict=True):
        row[: len(values)] = values
    return out


def _of_arrow(feature: RawFeature, column: pa.Array, limits: ScoreLimits) -> np.ndarray | list:
    column = _decoded(feature, column, limits)
    kind = column.type
    if feature.kind == NUMBER:
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
            raise _wrong_type(feature, kind)
        values = pc.cast(column, pa.float32(), safe=False).to_numpy(zero_copy_only=False)
        if np.isinf(values).any():
            raise raw_inputs.refuse(feature, "inf", int(np.isinf(values).argmax()))
        return values
    if not feature.is_list:
        return np.array(_texts(feature, column, kind).to_pylist() or [], object)
    if pa.types.is_null(kind):
        return [[] for _ in range(len(column))]
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise _wrong_type(feature, kind)
    longest = pc.max(pc.list_value_length(column)).as_py() or 0
    if longest > limits.max_list_length:
        place = pc.index(pc.list_value_length(column), longest).as_py()
        raw_inputs.check_length(feature, longest, place, limits.max_list_length)
    if len(column) * longest > limits.max_values:
        raise TooLarge(
            f"column {feature.name!r}: {len(column)} lists of up to {longest} values are over {limits.max_values} "
            "values (max_values): send fewer examples at a time, or shorter lists"
        )
    values = _texts(feature, _decoded(feature, column.flatten(), limits), kind)
    ends, values = np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy()), values.to_pylist()
    rows = [values[end - length : end] for end, length in zip(ends, np.diff(ends, prepend=0), strict=True)]
    raw_inputs.check_weights(feature, rows)
    return rows


def _decoded(feature: RawFeature, column: pa.Array, limits: ScoreLimits) -> pa.Array:
    """Returns the values of a column that may be a dictionary.

    Raises:
      TooLarge: they have too many bytes: a dictionary may name a long text in each example.
    """
    if not pa.types.is_dictionary(column.type):
        return column
    words = column.dictionary
    if not (_is_text(words.type) or pa.types.is_integer(words.type) or pa.types.is_floating(words.type)):
        raise _wrong_type(feature, column.type)
    if _is_text(words.type):
        size = pc.sum(pc.take(pc.binary_length(words), column.indices)).as_py() or 0
        if size > limits.max_body_bytes:
            raise TooLarge(
                f"column {feature.name!r}: {size} bytes without its dictionary, over {limits.max_body_bytes} "
                "(max_body_bytes): send fewer examples at a time"
            )
    return column.dictionary_decode()


def _is_text(kind: pa.DataType) -> bool:
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return any(each(kind) for each in is_text)


def _texts(feature, values, kind):
    """-> the values as binary, b"" for null."""
    if pa.types.is_integer(values.type):
        values = values.cast(pa.string())
    if not (pa.types.is_null(values.type) or _is_text(values.type)):
        raise _wrong_type(feature, kind)
    return pc.fill_null(values.cast(pa.large_binary()), b"")


def _wrong_type(feature, kind):
    return RequestRefused(f"column {feature.name!r}: type {kind}: expected {feature.expected}")
