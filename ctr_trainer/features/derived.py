"""The functions of `derive`: a part of a time, or the logarithmic bucket of a number.

| derive | argument | value |
|---|---|---|
| `hour` | a time | 0 to 23 |
| `weekday` | a time | 0, Monday, to 6 |
| `weekend` | a time | 1 on Saturday and Sunday, else 0 |
| `log_squared` | a number x | floor(log(x)^2) if x > 2, otherwise x without its fraction |

Each is the same function of the column's text at conversion and in an export. `times` lists the formats of a time.

Source of `log_squared`: Juan et al., the winning solution of Criteo's display-advertising challenge, 2014; the BARS
leaderboard transforms Criteo_x4 in this way.
"""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.features import times

if TYPE_CHECKING:  # TensorFlow takes seconds to import.
    import tensorflow as tf

WEEKEND, LOG_SQUARED = "weekend", "log_squared"
DERIVED = (times.HOUR, times.WEEKDAY, WEEKEND, LOG_SQUARED)

_NUMBER = r"^-?[0-9]{1,15}(?:\.[0-9]*)?$"
_SATURDAY = 5


def expected(what: str) -> str:
    """Returns a description of the valid values of a column, for an error message."""
    if what == LOG_SQUARED:
        return "a number of at most 15 digits before the point, such as 12 or -1.5"
    return times.EXPECTED


def derived(values: pa.Array, what: str) -> tuple[pa.Array, np.ndarray | None]:
    """Returns the derived values, int64, null if missing or invalid, and whether each is invalid, bool[n] or None.

    Args:
      values: pyarrow Array of texts or numbers; a number that is a time is read like its digits as text.
      what: one of `DERIVED`.
    """
    values = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    found = _of_numbers(values.dictionary) if what == LOG_SQUARED else _of_times(values.dictionary, what)
    none = np.isnan(found)
    column = pa.array(np.where(none, 0, found).astype(np.int64), mask=none).take(values.indices)
    missing = values.is_null().to_numpy(zero_copy_only=False) | _empty(values)
    bad = column.is_null().to_numpy(zero_copy_only=False) & ~missing
    return column, bad if bad.any() else None


def graph_derived(texts: "tf.Tensor", what: str) -> "tf.Tensor":
    """Derives values of string[B] by TensorFlow ops. Returns string[B] of digits; "" if missing or invalid."""
    import tensorflow as tf

    if what == LOG_SQUARED:
        good = tf.strings.regex_full_match(texts, _NUMBER)
        x = tf.strings.to_number(tf.where(good, texts, tf.fill(tf.shape(texts), "0")), tf.float64)
        logarithm = tf.math.log(tf.maximum(x, tf.ones_like(x)))
        found = tf.where(x > 2, tf.floor(logarithm * logarithm), tf.sign(x) * tf.floor(tf.abs(x)))
    else:
        seconds, good = times.graph_seconds(texts)
        found = times.of_seconds(seconds, times.WEEKDAY if what == WEEKEND else what)
        found = tf.cast(found >= _SATURDAY, tf.int64) if what == WEEKEND else found
    return tf.where(good, tf.strings.as_string(tf.cast(found, tf.int64)), tf.fill(tf.shape(texts), ""))


def _of_times(values: pa.Array, what: str) -> np.ndarray:
    found = times.of_seconds(times.seconds(values), times.WEEKDAY if what == WEEKEND else what)
    return np.where(np.isnan(found), np.nan, found >= _SATURDAY) if what == WEEKEND else found


def _of_numbers(values: pa.Array) -> np.ndarray:
    """Returns float64[n]; NaN for a missing value or a text that is not a number."""
    if pa.types.is_floating(values.type) or pa.types.is_integer(values.type):
        x = values.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    else:
        good = pc.match_substring_regex(values, _NUMBER).fill_null(False).to_numpy(zero_copy_only=False)
        x = np.full(len(values), np.nan)
        x[good] = values.filter(pa.array(good)).cast(pa.string()).cast(pa.float64())
    x = np.where(np.isfinite(x), x, np.nan)
    logarithm = np.log(np.maximum(x, 1.0))
    return np.where(x > 2, np.floor(logarithm * logarithm), np.trunc(x))


def _empty(values: pa.Array) -> np.ndarray:
    kind = values.dictionary.type
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return np.zeros(len(values), bool)
    empty = pc.equal(pc.binary_length(values.dictionary), 0)
    return empty.take(values.indices).fill_null(False).to_numpy(zero_copy_only=False)
