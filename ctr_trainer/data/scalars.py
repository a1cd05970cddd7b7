"""Reads source columns with one value per row as numbers or texts."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_NUMBER = r"^-?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$"
_PERHAPS = r"(?i)^[\d+\-.e]+$|^[+-]?(inf|infinity|nan)$"  # what else may be cast to one


def numbers(values, kind):
    """-> (float array, NaN if missing or bad; bool[n], whether a value is there and is no finite number, or None).

    Args:
      values: a column of numbers, or of texts that hold numbers.
      kind: pa.float32() or pa.float64(). A number that the kind cannot hold, such as a large whole number in float32,
        is rounded to the nearest one, and a tie to the one with an even last bit.

    Raises:
      TypeError: the column has another type.
    """
    values = one(values)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if pa.types.is_integer(values.type):
        return _of_integers(values, kind), None
    if pa.types.is_nested(values.type) or pa.types.is_temporal(values.type):
        raise TypeError("one number a row is wanted")
    try:
        plain = values.cast(pa.string()) if is_text(values.type) else values
        column = plain.cast(kind)
    except pa.ArrowNotImplementedError as error:
        raise TypeError("one number a row is wanted") from error
    except pa.ArrowInvalid:
        column = _of_some(text(values)[0].dictionary_encode(), kind)
    bad = np.isinf(column.fill_null(np.nan).to_numpy(zero_copy_only=False))
    if column.null_count > values.null_count:
        bad |= pc.and_(values.is_valid(), column.is_null()).to_numpy(zero_copy_only=False)
    return column.fill_null(np.nan), bad if bad.any() else None


def text(values):
    """-> (string array, null if missing or bad; bool[n], whether a value is not UTF-8, or None)."""
    values = one(values)
    if pa.types.is_nested(values.type):
        raise TypeError("one value a row is wanted")
    try:
        return values.cast(pa.string()), None
    except pa.ArrowInvalid:
        bad = np.array([v is not None and not _is_utf8(v) for v in values.to_pylist()])
        return pc.if_else(pa.array(bad), pa.scalar(None, values.type), values).cast(pa.string()), bad


def one(values):
    """A ChunkedArray or Array -> Array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def without_nan(values):
    """-> an Array in which NaN is null, since data frames write NaN for a missing value; other types are unchanged."""
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def is_text(kind):
    """Whether a type is of strings or bytes."""
    return any(is_kind(kind) for is_kind in _TEXTS)


_TEXTS = (pa.types.is_binary, pa.types.is_string, pa.types.is_large_binary, pa.types.is_large_string)


def any_bad(bad, wrong):
    """-> the union of two masks, the first of which may be None; None if no row is in it."""
    wrong = wrong if bad is None else bad | wrong
    return wrong if wrong.any() else None


def shown(value):
    """-> a pyarrow scalar in the form that messages show."""
    value = value.as_py()
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _of_integers(values, kind):
    """-> the integers as floats, NaN if missing. NumPy casts them, since Arrow refuses integers that get rounded."""
    column = values.fill_null(0).to_numpy(zero_copy_only=False).astype(kind.to_pandas_dtype())
    if values.null_count:
        column[values.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return pa.array(column)


def _of_some(values, kind):
    """-> the texts that are numbers, and null for the others. Texts that may be numbers are cast one by one."""

    def cast(value):
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


def _is_utf8(value):
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True
