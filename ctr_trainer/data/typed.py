"""Converts the typed columns of Parquet and TFRecords to the text or numbers that the encoder reads.

Dense and bucketised features, the weight, the time of a split, and labels without `positive` need numbers. A column
that is needed as both a number and a category is converted to a number, except dates with a derived feature, which stay
text. docs/inputs.md lists the conversions by type.
"""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.blocks import BadRow, Chunk, label_columns
from ctr_trainer.features.hashing import as_bytes
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError, did_you_mean, listed

_LABELS_ARE_NEEDED = "; `predict` needs no labels, and `convert` none with unlabelled set"
_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_A_DAY = 86_400


@dataclasses.dataclass(frozen=True)
class Use:
    """How a feature spec uses a source column: `why` describes it for messages, such as `feature 'price'`.

    `several` is whether a row may have several values, `keys_only` whether the column is used only for keys. Texts in
    `null_values` are missing, and numbers whose text is, if the column `has_keys`: an export then reads it as text.
    Dates that a feature is `derived` from stay text: seconds before 1973 would be read as another time, or as none.
    """

    why: str
    number: bool
    several: bool
    keys_only: bool
    has_keys: bool = False
    derived: bool = False
    null_values: tuple[str, ...] = ()


def uses(spec: FeatureSpec | None, time: str | None = None) -> dict[str, Use]:
    """Returns the Use of each column that is read, {} without a spec for all; `time` is the column of a time split."""
    if spec is None:
        return {}
    labels = label_columns(spec).values()
    why = {label.column: "the label" for label in labels}
    why |= {column: use for column, use in ((spec.weight, "the weight"), (time, "the split by time")) if column}
    why |= dict.fromkeys(spec.ids, "'ids'")
    others = set(why)
    why |= {each.key: f"[[lookup]] {each.name!r}" for each in spec.lookups_read}
    features = [f for f in spec.features if f.column not in spec.looked_up]
    why |= {f.column: f"feature {f.name!r}" for f in features}
    # A split by time can read dates, and a feature that is derived from the same column needs their text.
    derived = {f.column for f in spec.sparse if f.derive}
    numbers = {f.column for f in spec.dense} | {f.column for f in spec.bucketised} | {spec.weight} | {time} - derived
    numbers |= {label.column for label in labels if label.positive is None}
    several = {f.column for f in (*spec.bags, *spec.sequences)}
    keys = {f.column for f in spec.sparse if not f.is_bucketised} | {each.key for each in spec.lookups_read}
    nulls = spec.csv.null_values
    of_keys = tuple(filter(None, nulls))  # A category without a text is missing anyway.
    only_ids = set(spec.ids) - keys - numbers - {label.column for label in labels}
    return {
        name: Use(
            *(reason, name in numbers, name in several, name not in numbers | others),
            has_keys=name in keys,
            derived=name in derived,
            null_values=() if name in only_ids else nulls if name in numbers else of_keys,
        )
        for name, reason in why.items()
    }


def check(wanted: dict[str, Use], names: Sequence[str], file: str, spec: FeatureSpec | None, cure: str = "") -> None:
    """Raises UserError, with the advice `cure`, if a source lacks a column of `uses` or has several with its name."""
    if spec is None:
        return
    for column, use in wanted.items():
        if list(names).count(column) > 1:
            raise UserError(
                f"{file}: {list(names).count(column)} columns are named {column!r}, the column of {use.why}; rename one"
            )
        if column not in names:
            hint = _LABELS_ARE_NEEDED if column in {label.column for label in label_columns(spec).values()} else ""
            raise UserError(
                f"{file}: no column {column!r} for {use.why} (feature spec {spec.name!r}); the "
                f"columns are {listed(names)}{did_you_mean(column, names)}{cure or hint}"
            )


def as_chunk(
    table: pa.Table,
    wanted: dict[str, Use],
    file: str,
    numbers: np.ndarray,
    bad_rows: list[BadRow],
    misfits: Sequence[BadRow] = (),
) -> Chunk:
    """Converts the `wanted` columns of a table, see `uses`, to a Chunk. With all but `bad_rows`, it is a Block.

    `numbers` are those of the rows in the file, from 1. Rows with several values instead of one go to `bad_rows`, after
    the `misfits`, which the table lacks.
    """
    bad_rows += misfits
    columns, good = {}, np.ones(len(table), bool)
    if not wanted:
        return Chunk(table, file, lambda row: int(numbers[row]))
    for name in table.column_names:
        values = table[name].combine_chunks()
        try:
            columns[name], bad, expected = _plain(values, wanted[name])
        except pa.ArrowNotImplementedError as error:
            raise UserError(
                f"{file}: column {name!r} has type {values.type}, which cannot be read as {wanted[name].why}: expected "
                "single values, or lists of them if the feature has a combiner; flatten the column, or use another one"
            ) from error
        for row in np.flatnonzero(bad & good) if bad is not None else ():
            good[row] = False
            bad_rows.append(BadRow(file, int(numbers[row]), name, values[int(row)].as_py(), expected))
    plain = pa.table(columns)
    if not good.all():
        plain, numbers = plain.filter(pa.array(good)), numbers[good]
    return Chunk(plain, file, lambda row: int(numbers[row]))


def _plain(values: pa.Array, use: Use) -> tuple[pa.Array, np.ndarray | None, str]:
    """Converts a column. Returns (array, mask of the bad rows or None, description of a valid value)."""
    kind, bad, expected = values.type, None, ""
    if pa.types.is_dictionary(kind):
        if use.keys_only and (is_text(kind.value_type) or pa.types.is_integer(kind.value_type)):
            if use.null_values and is_null(values.dictionary, use.null_values).any():
                values = _without_nulls(values.dictionary_decode(), use).dictionary_encode()
            return values, None, ""  # Keep the dictionary, so that each distinct value is hashed once.
        values = values.cast(kind.value_type)
    if is_list(values.type):
        lists = values.cast(pa.list_(without_views(values.type.value_type)))
        if use.several:
            splits, flat = _flat(lists)
            return pa.ListArray.from_arrays(pa.array(splits), _category(flat)), None, ""
        values, bad = only(lists)
        expected = f"one value for {use.why}; lists are for features with a combiner"
    is_date = pa.types.is_date(values.type) or pa.types.is_timestamp(values.type)
    is_number = use.number and not (use.derived and is_date)
    return _without_nulls(as_number(values) if is_number else _category(values), use), bad, expected


def _without_nulls(values: pa.Array, use: Use) -> pa.Array:
    if not use.null_values or not (use.has_keys or is_text(values.type)):
        return values
    return pc.if_else(pa.array(is_null(values, use.null_values)), pa.scalar(None, values.type), values)


def is_null(values: pa.Array, null_values: Iterable[str]) -> np.ndarray:
    """Returns bool[n], whether the text of each value is one of `null_values`."""
    nulls = pa.array([text.encode() for text in null_values], pa.binary())
    return pc.is_in(bytes_of(values), nulls).to_numpy(zero_copy_only=False)


def _category(values: pa.Array) -> pa.Array:
    if pa.types.is_duration(values.type):  # Its unit is not part of the key.
        values = as_number(values)
    return values if pa.types.is_integer(values.type) else bytes_of(values)


def only(lists: pa.ListArray) -> tuple[pa.Array, np.ndarray | None]:
    """Returns (the only value of each list, or null; mask of the lists with several values, or None)."""
    splits, flat = _flat(lists)
    lengths = np.diff(splits)
    bad = lengths > 1
    return flat.take(pa.array(splits[:-1], mask=lengths != 1)), bad if bad.any() else None


def _flat(lists: pa.ListArray) -> tuple[np.ndarray, pa.Array]:
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32), lists.flatten()


def as_number(values: pa.Array) -> pa.Array:
    """Returns values as numbers; texts as bytes; dates, times and durations in seconds."""
    kind = values.type
    if is_text(kind):
        return bytes_of(values)  # The encoder parses the text and reports invalid numbers.
    if pa.types.is_null(kind) or pa.types.is_float16(kind):
        return values.cast(pa.float32())
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8())
    if pa.types.is_decimal(kind):
        return values.cast(pa.float64())
    if pa.types.is_date(kind):
        return pc.multiply(values.cast(pa.date32()).cast(pa.int32()).cast(pa.float64()), float(_SECONDS_A_DAY))
    if pa.types.is_temporal(kind):
        whole = values.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64())
        return pc.divide(whole.cast(pa.float64(), safe=False), float(_UNITS[kind.unit]))
    return values.cast(kind if is_number(kind) else pa.float64())


def bytes_of(values: pa.Array) -> pa.Array:
    """Returns texts as bytes, and other values as `hashing.as_bytes` returns them."""
    values = decoded(values)
    return values.cast(pa.binary()) if is_text(values.type) else as_bytes(values)


def decoded(values: pa.Array) -> pa.Array:
    """Returns an array without a dictionary, which the columns of partitions have in all formats."""
    return values.dictionary_decode() if pa.types.is_dictionary(values.type) else values


def is_text(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a string or binary type."""
    sized = pa.types.is_large_string(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    return pa.types.is_string(kind) or pa.types.is_binary(kind) or sized or _is_view(kind)


def _is_view(kind: pa.DataType) -> bool:
    return hasattr(pa, "string_view") and (pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def without_views(kind: pa.DataType) -> pa.DataType:
    """Returns an Arrow type with large texts instead of views, which Arrow cannot take from lists and dictionaries."""
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, without_views(kind.value_type))
    if is_list(kind):
        return pa.large_list(without_views(kind.value_type))
    if not _is_view(kind):
        return kind
    return pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()


def is_number(kind: pa.DataType) -> bool:
    """Whether an Arrow type is an integer or floating-point type."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind)


def is_list(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a list type."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
