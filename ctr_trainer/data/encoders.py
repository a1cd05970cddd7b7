"""Encodes source columns with one or several values per row: numbers, texts, labels, bags and sequences."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.blocks import Encoded
from ctr_trainer.data.typed import bytes_of, decoded, is_list, is_null, is_text
from ctr_trainer.features.columns import Label, SparseFeature
from ctr_trainer.features.hashing import keys

_LABEL_CURE = "; if the column has other values, set `positive` or `threshold` in [label]"
OPENING, CLOSING = r"^\s*[\[({]", r"[\])}]\s*$"
AROUND = r"^[\s'\"]+|[\s'\"]+$"
# Matches a value that looks like several values: it begins with a bracket, ends with a closing bracket without an
# opening one, or has blanks at an end or between numbers.
_ODD = rf"{OPENING}|^[^\[({{]*{CLOSING}|^\s|\s$|^\S*\d(\s+\S*\d)+$"
_LOOKED_AT = 10_000  # Number of values per chunk that are matched with _ODD.


def numbers(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, np.ndarray | None]:
    """Returns (float array, NaN if missing or not a number; mask of the infinite or invalid values, or None).

    The values are numbers, or texts that represent numbers; `kind` is pa.float32() or pa.float64(). A number that the
    type cannot represent, such as a large whole number in float32, is rounded to the nearest number, with ties to even.
    """
    values = decoded(values)
    if pa.types.is_integer(values.type):
        return values.cast(kind, safe=False).fill_null(np.nan), None
    try:
        plain = values.cast(pa.string()) if is_text(values.type) else values
        column = plain.cast(kind)
    except pa.ArrowInvalid:
        column = _of_some(text(values)[0].dictionary_encode(), kind)
    bad = np.isinf(column.fill_null(np.nan).to_numpy(zero_copy_only=False))
    if column.null_count > values.null_count:
        bad |= pc.and_(values.is_valid(), column.is_null()).to_numpy(zero_copy_only=False)
    return column.fill_null(np.nan), bad if bad.any() else None


def text(values: pa.Array) -> tuple[pa.Array, np.ndarray | None]:
    """Returns (string array, null if missing or invalid; mask of the values with invalid UTF-8, or None)."""
    try:
        return values.cast(pa.string()), None
    except pa.ArrowInvalid:
        bad = np.array([v is not None and v.decode(errors="ignore").encode() != v for v in values.to_pylist()])
        return pc.if_else(pa.array(bad), pa.scalar(None, values.type), values).cast(pa.string()), bad


def not_utf8(values: pa.Array) -> np.ndarray | None:
    """Returns the mask of the texts that are not UTF-8, or None if all are, or if the values are no texts."""
    if pa.types.is_dictionary(values.type):
        bad = not_utf8(values.dictionary)
        return None if bad is None else np.append(bad, False)[values.indices.fill_null(len(bad)).to_numpy()]
    return text(values.cast(pa.binary()))[1] if is_text(values.type) else None


def invalid_byte(value: pa.Scalar) -> str:
    """Names the first byte of a value, or of a list of values, that is not UTF-8; "" if there is none."""
    held = value_of(value)
    try:
        for part in held if isinstance(held, list) else [held]:
            _ = part.decode() if isinstance(part, bytes) else ""
    except UnicodeDecodeError as error:
        return (
            f": the byte 0x{error.object[error.start]:02x} is not UTF-8. If the text has another encoding, write it "
            "again in UTF-8 or, for CSV files, name the encoding as `encoding` in [csv], such as latin-1"
        )
    return ""


def any_bad(bad: np.ndarray | None, wrong: np.ndarray) -> np.ndarray | None:
    """Returns the union of two masks; `bad` may be None. Returns None if the union is empty."""
    wrong = wrong if bad is None else bad | wrong
    return wrong if wrong.any() else None


def value_of(value: pa.Scalar) -> Any:
    """Returns the Python value of a pyarrow scalar; a text as bytes, since Parquet's texts may not be UTF-8."""
    value = value.value if isinstance(value, pa.DictionaryScalar) else value
    return value.cast(pa.binary()).as_py() if is_text(value.type) else value.as_py()


def shown(value: pa.Scalar) -> Any:
    """Returns the Python value of a pyarrow scalar, for messages."""
    value = value_of(value)
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def encode_label(values: pa.Array, label: Label, suffix: str, is_needed: bool = True) -> Encoded:
    """Encodes labels as float32, 0 or 1. A missing or invalid label makes the row bad or, if not `is_needed`, is NaN.

    `suffix` is `CsvFormat.label_suffix`.
    """
    encoded = _label(values, label, suffix)
    if is_needed or encoded.bad is None:
        return encoded
    return Encoded(pa.array(np.where(encoded.bad, np.float32("nan"), encoded.column.to_numpy(zero_copy_only=False))))


def _label(values: pa.Array, label: Label, suffix: str) -> Encoded:
    values, bad = text(values)
    if suffix:
        values = pc.if_else(pc.ends_with(values, suffix), pc.utf8_slice_codeunits(values, 0, -len(suffix)), values)
    if label.positive is not None:
        positive = pc.equal(values, label.positive).fill_null(False)
        missing = values.is_null().to_numpy(zero_copy_only=False)
        return Encoded(positive.cast(pa.float32()), any_bad(bad, missing), "a label (UTF-8 text)")
    (column, bad), cure = numbers(values, pa.float64()), ""
    column = column.to_numpy(zero_copy_only=False)
    if label.threshold is not None:
        labels, wrong = column >= label.threshold, np.isnan(column)
        expected = f"a number, to compare with {label.threshold:g}"
    else:
        labels, wrong = column == 1, ~np.isin(column, (0, 1))
        expected, cure = "a label of 0 or 1", _LABEL_CURE
    return Encoded(pa.array(labels.astype(np.float32)), any_bad(bad, wrong), expected, cure=cure)


def _of_some(values: pa.DictionaryArray, kind: pa.DataType) -> pa.Array:
    """Casts texts to numbers one by one, null for texts that are not numbers."""

    def cast(value: pa.Scalar) -> float | None:
        try:
            return value.cast(kind).as_py()
        except pa.ArrowInvalid:
            return None

    return pa.array([cast(value) for value in values.dictionary], kind).take(values.indices)


def encode_list(values: pa.Array, feature: SparseFeature, null_values: Sequence[str] = ()) -> Encoded:
    """Encodes each row's values as list<int64> keys, and their weights if the feature has weights.

    A text is split at the separators, a list is used unchanged, and any other value becomes a list of one value. Empty
    values are dropped, and one of `null_values` without other values: "A||B" has two values, "" has none. A list
    without values gets the key of "" if `feature.missing_has_row`. A row is bad if one of its values is not UTF-8, or a
    weight is not a finite number.
    """
    if is_list(values.type):
        flat, owner = bytes_of(pc.list_flatten(values)), pc.list_parent_indices(values).to_numpy()
        return _encode(flat, owner, len(values), feature, null_values)
    # Each distinct text is split once. An additional empty text at the end represents missing values.
    values = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    lists = split(bytes_of(values.dictionary), feature)
    flat, owner = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    encoded = _encode(flat, owner, len(lists) + 1, feature, null_values)
    where = values.indices.fill_null(len(lists))
    return dataclasses.replace(
        encoded,
        column=encoded.column.take(where),
        bad=None if encoded.bad is None else encoded.bad[where.to_numpy()],
        weights=None if encoded.weights is None else encoded.weights.take(where),
        lengths=None if encoded.lengths is None else encoded.lengths[where.to_numpy()],
    )


def split(texts: pa.Array, feature: SparseFeature) -> pa.ListArray:
    """Splits texts, an Array of bytes, at the feature's `separator`. Removes brackets if `feature.brackets` is set."""
    if not feature.brackets:
        return pc.split_pattern(texts, feature.separator)
    bare = pc.replace_substring_regex(pc.replace_substring_regex(texts, OPENING, ""), CLOSING, "")
    lists = pc.split_pattern(bare, feature.separator)
    values = pc.replace_substring_regex(lists.flatten(), AROUND, "")
    return pa.ListArray.from_arrays(lists.offsets, values)


def _encode(
    flat: pa.Array, owner: np.ndarray, count: int, feature: SparseFeature, null_values: Sequence[str]
) -> Encoded:
    """Encodes `count` lists. `flat` has the values of all lists as bytes, and `owner` their list numbers, ascending."""
    weights = bad = None
    if any(null_values):
        texts = np.bincount(owner[_is_filled(flat)], minlength=count)
        taken = ~(is_null(flat, null_values) & (texts[owner] == 1))
        flat, owner = flat.filter(pa.array(taken)), owner[taken]
    if feature.weight_separator is not None:
        flat, weights, wrong = _weights(flat, feature.weight_separator)
        if wrong is not None:
            bad = np.bincount(owner[wrong], minlength=count) > 0
    if (wrong := not_utf8(flat)) is not None:
        bad = (np.bincount(owner[wrong], minlength=count) > 0) | (False if bad is None else bad)
    kept = np.flatnonzero(_is_filled(flat))
    lengths, looked_at = np.bincount(owner[kept], minlength=count), flat.slice(0, _LOOKED_AT)
    first_odd = pc.index(pc.match_substring_regex(looked_at, _ODD), True).as_py()
    kept = _within_length(kept, owner, feature)
    owner, hashed = owner[kept], keys(feature.slot, flat.take(pa.array(kept)))
    weights = None if weights is None else weights[kept]
    splits = np.searchsorted(owner, np.arange(count + 1))
    if feature.missing_has_row:
        empty = np.flatnonzero(np.diff(splits) == 0)
        hashed = np.insert(hashed, splits[empty], keys(feature.slot, pa.array([""])))
        weights = None if weights is None else np.insert(weights, splits[empty], np.float32(1))
        splits = splits + np.searchsorted(empty, np.arange(count + 1))
    splits = pa.array(splits.astype(np.int32))
    of_weights = f"values with finite weights, such as 'a{feature.weight_separator}0.5'"
    return Encoded(
        column=pa.ListArray.from_arrays(splits, pa.array(hashed)),
        bad=bad,
        expected="UTF-8 text" if weights is None else of_weights,
        weights=None if weights is None else pa.ListArray.from_arrays(splits, pa.array(weights)),
        lengths=lengths,
        odd=None if first_odd < 0 else shown(looked_at[first_odd]),
    )


def _is_filled(texts: pa.Array) -> np.ndarray:
    return pc.binary_length(texts).fill_null(0).to_numpy(zero_copy_only=False) > 0


def _within_length(kept: np.ndarray, owner: np.ndarray, feature: SparseFeature) -> np.ndarray:
    """Returns the indices in `kept` of the first or last `max_length` values of each list."""
    if not feature.max_length:
        return kept
    of = owner[kept]
    if feature.keeps_last:
        before_end = np.searchsorted(of, of, side="right") - 1 - np.arange(len(of))
        return kept[before_end < feature.max_length]
    return kept[np.arange(len(of)) - np.searchsorted(of, of) < feature.max_length]


def _weights(flat: pa.Array, separator: str) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
    """Returns (values; float32 weights, 1 for a value without a weight; mask of the invalid weights, or None)."""
    parts = pc.split_pattern(flat, separator, max_splits=1, reverse=True)
    has_weight = pc.list_value_length(parts).fill_null(0).to_numpy(zero_copy_only=False) == 2
    weights = np.ones(len(flat), np.float32)
    values = pc.list_element(parts, 0)
    if not has_weight.any():
        return values, weights, None
    texts = pc.list_element(parts.filter(pa.array(has_weight)), 1)
    found, bad = numbers(texts, pa.float32())
    weights[has_weight] = found.to_numpy(zero_copy_only=False)
    wrong = np.isnan(weights)  # An empty weight is invalid as well.
    if bad is not None:
        wrong[has_weight] |= bad
    return values, weights, wrong if wrong.any() else None
