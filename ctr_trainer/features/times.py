"""Parses times, and derives values from times and numbers, identically at conversion, in training and in an export.

| text | read as |
|---|---|
| `2024-01-31`, `2024-01-31 08:30`, `2024-01-31T08:30:15.25Z`, `... 08:30:15+02:00` | a date; UTC without an offset |
| `31/01/2024`, `31.1.2024 08:30`, `01-31-2024` ... | a date, if `derive` says `day_first` or `month_first` |
| a number below 10^8 | `YYMMDDHH`, such as `14102108` in Avazu's data: 2014-10-21, 8 o'clock |
| a number below 10^11 | seconds since 1970 in UTC, from March 1973 on |
| any greater number | milliseconds since 1970 in UTC |

    hour = floor(seconds / 3600) mod 24      weekday = (floor(seconds / 86400) + 3) mod 7, Monday is 0

Hour and weekday are in UTC. Any other text, or a date that does not exist, is not a time.

| derive | argument | value |
|---|---|---|
| `hour` | a time | 0 to 23 |
| `weekday` | a time | 0, Monday, to 6 |
| `weekend` | a time | 1 on Saturday and Sunday, else 0 |
| `log_squared` | a number x | floor(log(x)^2) if x > 2, otherwise x without its fraction |


Source of `log_squared`: Juan et al., the winning solution of Criteo's display-advertising challenge, 2014; the BARS
leaderboard transforms Criteo_x4 in this way.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import tensorflow as tf

Numbers = Any  # A number, NumPy array or TensorFlow tensor; the arithmetic is the same.
HOUR, WEEKDAY = "hour", "weekday"
_TIME = "a time, such as 2024-01-31 08:30:00, seconds or milliseconds since 1970, or YYMMDDHH"

_NUMBER = r"^[0-9]{1,15}(?:\.[0-9]*)?$"
_DATE = (
    r"^(?P<year>[0-9]{4})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
    r"(?:[ T](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{2})(?::(?P<second>[0-9]{2}(?:\.[0-9]+)?))?)?"
    r"(?:Z|(?P<sign>[+-])(?P<ahead>[0-9]{2}):?(?P<and>[0-9]{2}))?$"
)
# In the order of the groups of `_DATE`.
_PARTS = ("year", "month", "day", "hour", "minute", "second", "sign", "ahead", "and")
_SHORT, _SECONDS = 1e8, 1e11  # Numbers below _SHORT are YYMMDDHH, other numbers below _SECONDS are seconds.
_HOUR, _DAY = 3600.0, 86400.0
WEEKEND, LOG_SQUARED = "weekend", "log_squared"
_YEAR_LAST = r"^([0-9]{1,2})[./-]([0-9]{1,2})[./-]([0-9]{4})($|[ T].*)"
DAY_FIRST, MONTH_FIRST = "day_first", "month_first"
_ISO = {DAY_FIRST: r"\3-\2-\1\4", MONTH_FIRST: r"\3-\1-\2\4"}
ORDERED = tuple(f"{order}_{what}" for order in _ISO for what in (HOUR, WEEKDAY, WEEKEND))
DERIVED = (HOUR, WEEKDAY, WEEKEND, LOG_SQUARED, *ORDERED)
_SIGNED = r"^-?[0-9]{1,15}(?:\.[0-9]*)?$"
_SATURDAY = 5


def seconds(values: pa.Array) -> np.ndarray:
    """Converts texts or numbers to float64[n], seconds since 1970 in UTC; NaN if missing or not a time."""
    found = _of_numbers(_numbers(values, _NUMBER))
    if not _has_numbers(values):
        date = is_date(values)
        found[date] = _of_dates(values.filter(pa.array(date)))
    return found


def order_of(what: str | None) -> str:
    """Returns the order of day and month in `derive`: DAY_FIRST, MONTH_FIRST, or "" for the year first."""
    return next((order for order in _ISO if (what or "").startswith(order)), "")


def year_first(values: pa.Array, order: str) -> pa.Array:
    """Rewrites texts such as 31/01/2024 as 2024-01-31. Other texts, and numbers, stay as they are."""
    if not order or _has_numbers(values):
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


def _has_numbers(values: pa.Array) -> bool:
    return pa.types.is_floating(values.type) or pa.types.is_integer(values.type)


def _numbers(values: pa.Array, pattern: str) -> np.ndarray:
    """Converts numbers or texts to float64[n]; NaN for a missing value or a text that does not match the pattern."""
    if _has_numbers(values):
        return values.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False)
    found, number = np.full(len(values), np.nan), _matches(values, pattern)
    found[number] = values.filter(pa.array(number)).cast(pa.string()).cast(pa.float64())
    return found


def _of_numbers(x: np.ndarray) -> np.ndarray:
    """Converts numbers, float64[n], to seconds since 1970; NaN for a number that is not a time."""
    whole = np.floor(np.nan_to_num(x))
    short, good = _short(np.where((whole >= 0) & (whole < _SHORT), whole, 0.0))
    found = np.where(whole < _SHORT, short, np.where(whole < _SECONDS, x, x / 1000))
    return np.where((x >= 0) & np.isfinite(x) & (good | (whole >= _SHORT)), found, np.nan)


def _of_dates(texts: pa.Array) -> np.ndarray:
    """Converts texts that match `_DATE` to seconds since 1970; NaN for a date that does not exist."""
    groups = pc.extract_regex(texts, _DATE)
    parts = [pc.struct_field(groups, name).cast(pa.string()) for name in _PARTS]
    back = pc.equal(parts.pop(_PARTS.index("sign")), "-").to_numpy(zero_copy_only=False)
    numbers = [pc.if_else(pc.equal(p, ""), "0", p).cast(pa.float64()).to_numpy(zero_copy_only=False) for p in parts]
    found, good = _instant(*[*numbers, 1.0 - 2.0 * back])
    return np.where(good, found, np.nan)


def of_seconds(seconds: Numbers, what: str) -> Numbers:
    """Returns the hour or weekday of seconds since 1970, for NumPy arrays and TensorFlow tensors."""
    return seconds // _HOUR % 24 if what == HOUR else (seconds // _DAY + 3) % 7


def _short(x: Numbers) -> tuple[Numbers, Numbers]:
    """Returns (seconds since 1970, whether the time is valid) for numbers YYMMDDHH, in NumPy or TensorFlow."""
    year, month, day, hour = 2000 + x // 10**6, x // 10**4 % 100, x // 100 % 100, x % 100
    return _instant(year, month, day, hour, 0 * x, 0 * x, 0 * x, 0 * x, 1.0)


def _instant(
    year: Numbers,
    month: Numbers,
    day: Numbers,
    hour: Numbers,
    minute: Numbers,
    second: Numbers,
    ahead: Numbers,
    and_minutes: Numbers,
    sign: Numbers,
) -> tuple[Numbers, Numbers]:
    """Returns (seconds since 1970, whether the time is valid), for NumPy arrays and TensorFlow tensors."""
    start = _days(year, month, day)
    good = (month >= 1) & (month <= 12) & (day >= 1) & (start < _days(year + month // 12, month % 12 + 1, 0 * day + 1))
    good = good & (hour < 24) & (minute < 60) & (second < 61)
    return start * _DAY + (hour - sign * ahead) * _HOUR + (minute - sign * and_minutes) * 60 + second, good


def _days(year: Numbers, month: Numbers, day: Numbers) -> Numbers:
    """Returns the number of days from 1970-01-01 to a day of the Gregorian calendar.

    Source: Richards, in Explanatory Supplement to the Astronomical Almanac, 3rd edition, section 15.11.3.
    """
    early = (14 - month) // 12
    year, month = year + 4800 - early, month + 12 * early - 3
    return day + (153 * month + 2) // 5 + 365 * year + year // 4 - year // 100 + year // 400 - 32045 - 2440588


def graph_seconds(texts: "tf.Tensor") -> tuple["tf.Tensor", "tf.Tensor"]:
    """Returns (seconds since 1970 in UTC, whether the time is valid) for string[B], with TensorFlow operations."""
    import tensorflow as tf

    number, date = tf.strings.regex_full_match(texts, _NUMBER), tf.strings.regex_full_match(texts, _DATE)
    x = tf.strings.to_number(tf.where(number, texts, tf.fill(tf.shape(texts), "0")), tf.float64)
    whole = tf.floor(x)
    short, good = _short(tf.where(whole < _SHORT, whole, tf.zeros_like(whole)))
    of_number = tf.where(whole < _SHORT, short, tf.where(whole < _SECONDS, x, x / 1000))
    number &= good | (whole >= _SHORT)
    dates = tf.where(date, texts, tf.fill(tf.shape(texts), "1970-01-01"))
    parts = [tf.strings.regex_replace(dates, _DATE, rf"\{group}") for group in range(1, len(_PARTS) + 1)]
    sign = 1 - 2 * tf.cast(tf.equal(parts.pop(_PARTS.index("sign")), "-"), tf.float64)
    zero = tf.fill(tf.shape(texts), "0")
    numbers = [tf.strings.to_number(tf.where(tf.equal(p, ""), zero, p), tf.float64) for p in parts]
    of_date, good = _instant(*[*numbers, sign])
    date &= good
    return tf.where(date, of_date, of_number), number | date


def expected(what: str) -> str:
    """Returns a description of the valid values of a column, for an error message."""
    return "a number of at most 15 digits before the point, such as 12 or -1.5" if what == LOG_SQUARED else _TIME


def derived(values: pa.Array, what: str) -> tuple[pa.Array, np.ndarray | None]:
    """Returns (derived values, int64, null if missing or invalid; mask bool[n] of the invalid values, or None).

    The values are texts or numbers. A number that represents a time is read in the same way as the text of its digits.
    """
    values = values if pa.types.is_dictionary(values.type) else values.dictionary_encode()
    order = order_of(what)
    texts = year_first(values.dictionary, order)
    found = _buckets(texts) if what == LOG_SQUARED else _of_times(texts, what.removeprefix(f"{order}_"))
    none = np.isnan(found)
    column = pa.array(np.where(none, 0, found).astype(np.int64), mask=none).take(values.indices)
    missing = values.is_null().to_numpy(zero_copy_only=False) | _empty(values)
    bad = column.is_null().to_numpy(zero_copy_only=False) & ~missing
    return column, bad if bad.any() else None


def graph_derived(texts: "tf.Tensor", what: str) -> "tf.Tensor":
    """Derives values from string[B] with TensorFlow operations, as string[B] of digits; "" if missing or invalid."""
    import tensorflow as tf

    if what == LOG_SQUARED:
        good = tf.strings.regex_full_match(texts, _SIGNED)
        x = tf.strings.to_number(tf.where(good, texts, tf.fill(tf.shape(texts), "0")), tf.float64)
        logarithm = tf.math.log(tf.maximum(x, tf.ones_like(x)))
        found = tf.where(x > 2, tf.floor(logarithm * logarithm), tf.sign(x) * tf.floor(tf.abs(x)))
    else:
        order = order_of(what)
        texts = tf.strings.regex_replace(texts, _YEAR_LAST, _ISO[order]) if order else texts
        what = what.removeprefix(f"{order}_")
        seconds, good = graph_seconds(texts)
        found = of_seconds(seconds, WEEKDAY if what == WEEKEND else what)
        found = tf.cast(found >= _SATURDAY, tf.int64) if what == WEEKEND else found
    return tf.where(good, tf.strings.as_string(tf.cast(found, tf.int64)), tf.fill(tf.shape(texts), ""))


def _of_times(values: pa.Array, what: str) -> np.ndarray:
    found = of_seconds(seconds(values), WEEKDAY if what == WEEKEND else what)
    return np.where(np.isnan(found), np.nan, found >= _SATURDAY) if what == WEEKEND else found


def _buckets(values: pa.Array) -> np.ndarray:
    """Computes `log_squared` as float64[n]; NaN for a missing value or a text that is not a number."""
    x = _numbers(values, _SIGNED)
    x = np.where(np.isfinite(x), x, np.nan)
    logarithm = np.log(np.maximum(x, 1.0))
    return np.where(x > 2, np.floor(logarithm * logarithm), np.trunc(x))


def _empty(values: pa.Array) -> np.ndarray:
    if _has_numbers(values.dictionary):
        return np.zeros(len(values), bool)
    empty = pc.equal(pc.binary_length(values.dictionary), 0)
    return empty.take(values.indices).fill_null(False).to_numpy(zero_copy_only=False)
