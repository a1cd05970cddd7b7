"""Encodes source columns with several values per row, for bags and sequences."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.blocks import Encoded
from ctr_trainer.data.scalars import is_text, numbers, one, shown, without_nan
from ctr_trainer.data.typed import is_list
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.hashing import keys

_OPENING, _CLOSING = r"^\s*[\[({]", r"[\])}]\s*$"
_AROUND = r"^[\s'\"]+|[\s'\"]+$"
# Matches a value that looks like several values: it begins with a bracket, ends with a closing bracket without an
# opening one, or has blanks at an end or between numbers.
_ODD = rf"{_OPENING}|^[^\[({{]*{_CLOSING}|^\s|\s$|^\S*\d(\s+\S*\d)+$"
_LOOKED_AT = 10_000  # Number of values per chunk that are compared with _ODD.


def encode_list(values: pa.Array | pa.ChunkedArray, feature: SparseFeature) -> Encoded:
    """Encodes each row's values as list<int64> keys, and their weights if the feature has weights.

    A text is split at the separators, a list is used as it is, and any other value is a list of one value. Empty values
    do not count: "A||B" has two values, "" has none. A row is bad if one of its weights is not a finite number.

    Args:
      values: column of the source.
      feature: SparseFeature with a combiner.
    """
    values = one(values)
    if is_list(values.type):
        flat, owner = _bytes(pc.list_flatten(values)), pc.list_parent_indices(values).to_numpy()
        return _encode(flat, owner, len(values), feature)
    if pa.types.is_nested(values.type):
        raise TypeError("expected a list or separated text")
    values = without_nan(values)
    # Each distinct text is split once. An additional empty text at the end represents missing values.
    values = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    lists = split(_bytes(values.dictionary), feature)
    flat, owner = lists.flatten(), pc.list_parent_indices(lists).to_numpy()
    encoded = _encode(flat, owner, len(lists) + 1, feature)
    where = values.indices.fill_null(len(lists))
    return dataclasses.replace(
        encoded,
        column=encoded.column.take(where),
        bad=None if encoded.bad is None else encoded.bad[where.to_numpy()],
        weights=None if encoded.weights is None else encoded.weights.take(where),
        lengths=None if encoded.lengths is None else encoded.lengths[where.to_numpy()],
    )


def split(texts: pa.Array, feature: SparseFeature) -> pa.ListArray:
    """Splits texts, an Array of bytes, at the feature's `separator`, and removes `brackets`."""
    if not feature.brackets:
        return pc.split_pattern(texts, feature.separator)
    bare = pc.replace_substring_regex(pc.replace_substring_regex(texts, _OPENING, ""), _CLOSING, "")
    lists = pc.split_pattern(bare, feature.separator)
    values = pc.replace_substring_regex(lists.flatten(), _AROUND, "")
    return pa.ListArray.from_arrays(lists.offsets, values)


def _encode(flat: pa.Array, owner: np.ndarray, count: int, feature: SparseFeature) -> Encoded:
    """Encodes `count` lists. `flat` has the values of all lists as bytes; `owner`, ascending, has the list of each."""
    weights = bad = None
    if feature.weight_separator is not None:
        flat, weights, wrong = _weights(flat, feature.weight_separator)
        if wrong is not None:
            bad = np.bincount(owner[wrong], minlength=count) > 0
    kept = pc.binary_length(flat).fill_null(0).to_numpy(zero_copy_only=False) > 0
    kept = np.flatnonzero(kept)
    lengths, odd = np.bincount(owner[kept], minlength=count), _odd(flat)
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
    return Encoded(
        column=pa.ListArray.from_arrays(splits, pa.array(hashed)),
        bad=bad,
        expected=f"values with finite weights, such as 'a{feature.weight_separator}0.5'",
        weights=None if weights is None else pa.ListArray.from_arrays(splits, pa.array(weights)),
        lengths=lengths,
        odd=odd,
    )


def _odd(flat: pa.Array) -> Any:
    looked_at = flat.slice(0, _LOOKED_AT)
    first = pc.index(pc.match_substring_regex(looked_at, _ODD), True).as_py()
    return None if first < 0 else shown(looked_at[first])


def _within_length(kept: np.ndarray, owner: np.ndarray, feature: SparseFeature) -> np.ndarray:
    """Returns the part of `kept`, indices of values, that are among the first or last `max_length` of their list."""
    if not feature.max_length:
        return kept
    of = owner[kept]
    if feature.keeps_last:
        before_end = np.searchsorted(of, of, side="right") - 1 - np.arange(len(of))
        return kept[before_end < feature.max_length]
    return kept[np.arange(len(of)) - np.searchsorted(of, of) < feature.max_length]


def _weights(flat: pa.Array, separator: str) -> tuple[pa.Array, np.ndarray, np.ndarray | None]:
    """Splits values from their weights.

    Returns:
      (values, float32 weights, which are 1 for values without weight, bool whether each weight is invalid or None).
    """
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


def _bytes(values: pa.Array) -> pa.Array:
    """Returns the values as bytes; numbers as decimal digits."""
    if pa.types.is_nested(values.type):
        raise TypeError("expected lists of single values")
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return (values if is_text(values.type) else without_nan(values).cast(pa.string())).cast(pa.binary())
