"""Parses times, and derives values from times and numbers, identically at conversion, in training and in an export.

    hour = floor(seconds / 3600) mod 24      weekday = (floor(seconds / 86400) + 3) mod 7, Monday is 0
    log_squared = floor(log(x)^2) if x > 2, otherwise x without its fraction

Hour and weekday are in UTC. docs/features.md lists the texts and numbers that are times, and the values of `derive`.
Any other text, or a date that does not exist, is not a time.

Source of `log_squared`: Juan et al., the winning solution of Criteo's display-advertising challenge, 2014; the BARS
leaderboard transforms Criteo_x4 in this way.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.features.host_function import host_function

if TYPE_CHECKING:  # TensorFlow takes seconds to import.
    import tensorflow as tf

HOUR, WEEKDAY, WEEKEND, LOG_SQUARED = "hour", "weekday", "weekend", "log_squared"
DAY_FIRST, MONTH_FIRST = "day_first", "month_first"
_ISO = {DAY_FIRST: r"\3-\2-\1\4", MONTH_FIRST: r"\3-\1-\2\4"}
DERIVED = (HOUR, WEEKDAY, WEEKEND, LOG_SQUARED, *(f"{o}_{what}" for o in _ISO for what in (HOUR, WEEKDAY, WEEKEND)))
_TIME = "a time, such as 2024-01-31 08:30:00, seconds or milliseconds since 1970, or YYMMDDHH"

_NUMBER, _SIGNED = r"^[0-9]{1,15}(?:\.[0-9]*)?$", r"^-?[0-9]{1,15}(?:\.[0-9]*)?$"
# The groups are year, month, day, hour, minute, second, and the offset's sign, hours and minutes.
_DATE = (
    r"^([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})(?:[ T]([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}(?:\.[0-9]+)?))?)?"
    r"(?:Z|([+-])([0-9]{2}):?([0-9]{2}))?$"
)
_GROUPS = ",".join(rf"\{group}" for group in range(1, 10))
_YEAR_LAST = r"^([0-9]{1,2})[./-]([0-9]{1,2})[./-]([0-9]{4})($|[ T].*)"
_SHORT, _SECONDS = 1e8, 1e11  # Numbers below _SHORT are YYMMDDHH, other numbers below _SECONDS are seconds.
_HOUR, _DAY, _SATURDAY = 3600.0, 86400.0, 5


def seconds(values: pa.Array) -> np.ndarray:
    """Converts texts or numbers to float64[n], seconds since 1970 in UTC; NaN if missing or not a time."""
    found, good = host_function(graph_seconds)(texts_of(values))
    return np.where(good, found, np.nan)


def derived(values: pa.Array, what: str) -> tuple[pa.Array, np.ndarray | None]:
    """Returns (derived values, int64, null if missing or invalid; mask bool[n] of the invalid values, or None).

    The values are texts or numbers. A number is read in the same way as the text of its digits.
    """
    values = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    texts = texts_of(values.dictionary)
    found = host_function(graph_derived, what)(texts)
    none = found == b""
    column = pa.array(np.where(none, 0, found).astype(np.int64), mask=none)
    where = values.indices.fill_null(len(texts)).to_numpy()
    bad = np.append(none & (texts != b""), False)[where]
    return column.take(values.indices), bad if bad.any() else None


def expected(what: str) -> str:
    """Returns a description of the valid values of a column, for an error message."""
    return "a number of at most 15 digits before the point, such as 12 or -1.5" if what == LOG_SQUARED else _TIME


def order_of(what: str | None) -> str:
    """Returns the order of day and month in `derive`: DAY_FIRST, MONTH_FIRST, or "" for the year first."""
    return next((order for order in _ISO if (what or "").startswith(order)), "")


def year_first(values: pa.Array, order: str) -> pa.Array:
    """Rewrites texts such as 31/01/2024 as 2024-01-31. Other texts, and numbers, stay as they are."""
    if not order or pa.types.is_floating(values.type) or pa.types.is_integer(values.type):
        return values
    return pc.replace_substring_regex(values, _YEAR_LAST, _ISO[order])


def seen_orders(texts: pa.Array) -> list[str]:
    """Returns the orders (see `order_of`) in which all texts are dates; [] if they are not dates."""
    if is_date(texts).all():
        return [""]
    ordered = list(_ISO) if _matches(texts, _YEAR_LAST).all() else []
    return [order for order in ordered if not np.isnan(seconds(year_first(texts, order))).any()]


def is_date(values: pa.Array) -> np.ndarray:
    """Returns bool[n], whether each text of a pyarrow Array has the format of a date."""
    return _matches(values, _DATE)


def _matches(values: pa.Array, pattern: str) -> np.ndarray:
    return pc.match_substring_regex(values, pattern).fill_null(False).to_numpy(zero_copy_only=False)


def texts_of(values: pa.Array) -> np.ndarray:
    """Returns texts, or the digits of numbers, as bytes in an array of objects; b"" if missing."""
    values = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    if pa.types.is_floating(values.type):
        numbers = values.fill_null(np.nan).to_numpy(zero_copy_only=False)
        digits = [b"" if np.isnan(x) else np.format_float_positional(x, trim="-").encode() for x in numbers]
        return np.array(digits, object)
    texts = values.cast(pa.string()) if pa.types.is_integer(values.type) else values
    return texts.cast(pa.binary()).fill_null(b"").to_numpy(zero_copy_only=False)


def of_seconds(seconds: Any, what: str) -> Any:
    """Returns the hour or weekday of seconds since 1970, for NumPy arrays and TensorFlow tensors."""
    return seconds // _HOUR % 24 if what == HOUR else (seconds // _DAY + 3) % 7


def graph_seconds(texts: "tf.Tensor") -> tuple["tf.Tensor", "tf.Tensor"]:
    """Returns (seconds since 1970 in UTC, whether the time is valid) for string[B], with TensorFlow operations."""
    import tensorflow as tf

    number, date = tf.strings.regex_full_match(texts, _NUMBER), tf.strings.regex_full_match(texts, _DATE)
    x = tf.strings.to_number(tf.where(number, texts, "0"), tf.float64)
    whole, zero = tf.floor(x), tf.zeros_like(x)
    short = tf.where(whole < _SHORT, whole, zero)
    year, month, day, hour = 2000 + short // 10**6, short // 10**4 % 100, short // 100 % 100, short % 100
    of_short, good = _instant(year, month, day, hour, zero, zero)
    of_number = tf.where(whole < _SHORT, of_short, tf.where(whole < _SECONDS, x, x / 1000))
    number &= good | (whole >= _SHORT)
    groups = tf.strings.regex_replace(tf.where(date, texts, "1970-01-01"), _DATE, _GROUPS)
    parts = tf.reshape(tf.strings.split(groups, ",").values, [-1, 9])
    signs = tf.where(tf.equal(parts[:, 6], "-"), -1.0, 1.0)
    numbers = tf.strings.to_number(tf.where(tf.strings.regex_full_match(parts, "|[+-]"), "0", parts), tf.float64)
    *of_time, _, ahead, and_minutes = tf.unstack(numbers, 9, axis=1)
    of_date, good = _instant(*of_time)
    of_date -= tf.cast(signs, tf.float64) * (ahead * _HOUR + and_minutes * 60)
    date &= good
    return tf.where(date, of_date, of_number), number | date


def graph_dates(texts: "tf.Tensor") -> "tf.Tensor":
    """Returns float64[B], the seconds of string[B] where it is a date, see `is_date`, else NaN."""
    import tensorflow as tf

    is_date, none = tf.strings.regex_full_match(texts, _DATE), tf.fill(tf.shape(texts), np.float64("nan"))

    def found() -> "tf.Tensor":
        seconds, good = graph_seconds(texts)
        return tf.where(is_date & good, seconds, none)

    return tf.cond(tf.reduce_any(is_date), found, lambda: none)  # Numbers do not pay for dates.


def graph_derived(texts: "tf.Tensor", what: str) -> "tf.Tensor":
    """Derives values from string[B] with TensorFlow operations, as string[B] of digits; "" if missing or invalid."""
    import tensorflow as tf

    if what == LOG_SQUARED:
        good = tf.strings.regex_full_match(texts, _SIGNED)
        x = tf.strings.to_number(tf.where(good, texts, "0"), tf.float64)
        logarithm = tf.math.log(tf.maximum(x, tf.ones_like(x)))
        found = tf.where(x > 2, tf.floor(logarithm * logarithm), tf.sign(x) * tf.floor(tf.abs(x)))
    else:
        order = order_of(what)
        texts = tf.strings.regex_replace(texts, _YEAR_LAST, _ISO[order]) if order else texts
        what = what.removeprefix(f"{order}_")
        seconds, good = graph_seconds(texts)
        found = of_seconds(seconds, WEEKDAY if what == WEEKEND else what)
        found = tf.cast(found >= _SATURDAY, tf.int64) if what == WEEKEND else found
    return tf.where(good, tf.strings.as_string(tf.cast(found, tf.int64)), "")


def _instant(
    year: "tf.Tensor", month: "tf.Tensor", day: "tf.Tensor", hour: "tf.Tensor", minute: "tf.Tensor", second: "tf.Tensor"
) -> tuple["tf.Tensor", "tf.Tensor"]:
    """Returns (seconds since 1970, whether the time is valid)."""
    start = _days(year, month, day)
    good = (month >= 1) & (month <= 12) & (day >= 1) & (start < _days(year + month // 12, month % 12 + 1, 0 * day + 1))
    good = good & (hour < 24) & (minute < 60) & (second < 61)
    return start * _DAY + hour * _HOUR + minute * 60 + second, good


def _days(year: "tf.Tensor", month: "tf.Tensor", day: "tf.Tensor") -> "tf.Tensor":
    """Returns the number of days from 1970-01-01 to a day of the Gregorian calendar.

    Source: Richards, in Explanatory Supplement to the Astronomical Almanac, 3rd edition, section 15.11.3.
    """
    early = (14 - month) // 12
    year, month = year + 4800 - early, month + 12 * early - 3
    return day + (153 * month + 2) // 5 + 365 * year + year // 4 - year // 100 + year // 400 - 32045 - 2440588
