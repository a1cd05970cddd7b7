"""Encodes source columns with one value per row as numbers, texts or labels."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.blocks import Encoded
from ctr_trainer.features.columns import Label

_LABEL_CURE = "; if the column has other values, set `positive` or `threshold` in [label]"
_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_PERHAPS = r"(?i)^[\d+\-.e]+$|^[+-]?(inf|infinity|nan)$"  # Other texts that Arrow may cast to a number.


def numbers(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> tuple[pa.Array, np.ndarray | None]:
    """Returns a float array, NaN if missing or invalid, and whether each value is invalid (not a finite number).

    The second result is None if all values are valid.

    Args:
      values: a column of numbers, or of texts that represent numbers.
      kind: pa.float32() or pa.float64(). A number that the kind cannot represent, such as a large whole number in
        float32, is rounded to the nearest number, and ties to an even last bit.

    Raises:
      TypeError: the column has another type.
    """
    values = one(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_integer(values.type):
        return _of_integers(values, kind), None
    if pa.types.is_nested(values.type) or pa.types.is_temporal(values.type):
        raise TypeError("expected one number per row")
    try:
        plain = values.cast(pa.string()) if is_text(values.type) else values
        column = plain.cast(kind)
    except pa.ArrowNotImplementedError as error:
        raise TypeError("expected one number per row") from error
    except pa.ArrowInvalid:
        column = _of_some(text(values)[0].dictionary_encode(), kind)
    bad = np.isinf(column.fill_null(np.nan).to_numpy(zero_copy_only=False))
    if column.null_count > values.null_count:
        bad |= pc.and_(values.is_valid(), column.is_null()).to_numpy(zero_copy_only=False)
    return column.fill_null(np.nan), bad if bad.any() else None


def text(values: pa.Array | pa.ChunkedArray) -> tuple[pa.Array, np.ndarray | None]:
    """Returns a string array, null if missing or invalid, and whether each value is invalid UTF-8, or None."""
    values = one(values)
    if pa.types.is_nested(values.type):
        raise TypeError("expected one value per row")
    try:
        return values.cast(pa.string()), None
    except pa.ArrowInvalid:
        bad = np.array([v is not None and not _is_utf8(v) for v in values.to_pylist()])
        return pc.if_else(pa.array(bad), pa.scalar(None, values.type), values).cast(pa.string()), bad


def one(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Returns a ChunkedArray or Array as an Array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def without_nan(values: pa.Array) -> pa.Array:
    """Replaces NaN by null, as data frames write NaN for missing values; returns other types unchanged."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def is_text(kind: pa.DataType) -> bool:
    """Whether a type is one of the string and binary types that the encoder supports."""
    texts = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)
    return any(is_kind(kind) for is_kind in texts)


def any_bad(bad: np.ndarray | None, wrong: np.ndarray) -> np.ndarray | None:
    """Returns the union of two masks; `bad` may be None. Returns None if the union is empty."""
    wrong = wrong if bad is None else bad | wrong
    return wrong if wrong.any() else None


def shown(value: pa.Scalar) -> Any:
    """Returns the Python value of a pyarrow scalar, for messages."""
    value = value.as_py()
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def encode_label(values: pa.Array | pa.ChunkedArray, label: Label, suffix: str) -> Encoded:
    """Encodes a label as float32, 0 or 1. A row without a label is bad.

    Args:
      values: column of the source.
      label: Label.
      suffix: `CsvFormat.label_suffix`.
    """
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


def encode_label_or_nan(values: pa.Array | pa.ChunkedArray, label: Label, suffix: str) -> Encoded:
    """Encodes a label like `encode_label`, except that a missing or invalid label is NaN and the row is not bad."""
    encoded = encode_label(values, label, suffix)
    labels = encoded.column.to_numpy(zero_copy_only=False)
    return Encoded(pa.array(labels if encoded.bad is None else np.where(encoded.bad, np.float32("nan"), labels)))


def _of_integers(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns the integers as floats, NaN if missing. NumPy casts them, as Arrow refuses to round integers."""
    column = values.fill_null(0).to_numpy(zero_copy_only=False).astype(kind.to_pandas_dtype())
    if values.null_count:
        column[values.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return pa.array(column)


def _of_some(values: pa.DictionaryArray, kind: pa.DataType) -> pa.Array:
    """Returns the numbers of texts, null for texts that are not numbers. Unusual forms are cast one by one."""

    def cast(value: str) -> float | None:
        try:
            return pa.array([value]).cast(kind)[0].as_py()
        except pa.ArrowInvalid:
            return None

    texts, missing = values.dictionary, pa.scalar(None, pa.string())
    plain = pc.match_substring_regex(texts, _NUMBER)
    column = pc.if_else(plain, texts, missing).cast(kind)
    perhaps = np.flatnonzero(pc.and_not(pc.match_substring_regex(texts, _PERHAPS), plain))
    if len(perhaps):
        found = column.to_pylist()
        for at in perhaps:
            found[at] = cast(texts[int(at)].as_py())
        column = pa.array(found, kind)
    return column.take(values.indices)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
