"""Infers from a column's name and values whether it contains amounts, ids, times or lists."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data import encoders
from ctr_trainer.data.conversion.profile import LIST, NUMBER, Profile
from ctr_trainer.features.columns import SparseFeature

_IDS = frozenset(
    """
    id ids uid iid user usr member customer client visitor account item product sku goods article movie film song
    track video book shop store seller vendor merchant publisher advertiser brand company campaign creative ad
    adgroup banner channel source site domain page url query keyword app device os browser model carrier network isp
    ip zip postcode postal code country city region state province county district area location place lang language
    locale currency category cat cate categ subcategory genre type kind class segment cluster group bucket level tag
    label slot position gender sex occupation job profession education status hour weekday dow day week month
    quarter no key hash session cookie
    """.split()
)
_NUMBERS = frozenset(
    """
    age price cost amount amt revenue sales spend budget bid fee tax salary income wage balance gain loss profit
    margin discount paid num number count cnt counts freq frequency total sum avg mean median min max std var qty
    quantity size length len width height depth weight area volume duration seconds minutes hours days weeks months
    years elapsed dwell distance score rate ratio ctr cvr pct percent percentage prob probability rating stars votes
    reviews views clicks impressions visits likes shares orders purchases points speed temperature latitude
    longitude lat lon lng
    """.split()
)
_COUNTED = {"n", "nb", "num", "number", "count", "cnt", "total", "sum", "avg", "mean", "max", "min", "per", "since"}
_TIME = {"time", "timestamp", "ts", "date", "datetime", "epoch", "unix"}
_ID_ENDINGS = ("id", "code", "zip")  # Endings of names in one word, such as userid.
_LAGS = 5
_STRONG = 0.18  # Least mean autocorrelation of an ordered column.
_SMOOTH = 0.6  # The same, for numbers far from 0 whose frequencies differ more than by chance.
_FAR = 100
_ROUGH = 10.0
_SURE = 4.0  # Least distance, in standard deviations, from the autocorrelation of numbers without order.
_ENUMERATED = 200  # More distinct numbers than this, with few gaps, are ids.
_FULL = 0.8
_COUNTS = 4  # At least this many distinct numbers, each rarer than the previous one, are counts.
_SEPARATORS = "|;,^"
_SHARE = 0.2  # Least share of the values that contain the separator.
_IN_BRACKETS = r"^\s*\[.*\]\s*$|^\s*\(.*\)\s*$|^\s*\{.*\}\s*$"
_NUMBERED = r"^[A-Za-z_-]{0,4}\d+$"  # Values such as 17 or i17 may be separated by blanks; words belong to a text.
_MOST = 0.95
_SHARED, _BACK = 0.5, 0.1  # Least share of the list values that occur in the other column, and vice versa.
_FEW = 20  # Two columns may have fewer distinct values than this in common by chance.


def words(name: str) -> list[str]:
    """Returns the words of a name in lower case, such as user and id for `user_id`, `userId` and `user.id2`."""
    spaced = re.sub(r"([a-z])([A-Z])", r"\1 \2", name)
    return [word.lower() for word in re.findall(r"[^\W\d_]+", spaced)]


def is_number_name(name: str) -> bool:
    """Whether a name suggests a number, such as `age`, `hours_per_week` or `user_count`."""
    return _says(name) == "number"


def is_id_name(name: str) -> bool:
    """Whether a name suggests an id, such as `user`, `device_type` or `movieid`."""
    return _says(name) == "id"


def is_time_name(name: str) -> bool:
    """Whether a name suggests a time, such as `timestamp` or `click_time`."""
    return not _TIME.isdisjoint(words(name))


def _says(name: str) -> str | None:
    """Returns the kind that a name suggests, `number` or `id`, or None.

    A word of `_COUNTED` anywhere in the name has precedence, then the last known word (`price` in `item_price`). A name
    such as `account_number` may be an id or a count, so None leaves the decision to the values.
    """
    found = words(name)
    if len(found) > 1 and found[-1] == "number":
        return None
    if len(found) > 1 and _COUNTED.intersection(found):
        return "number"
    for word in reversed(found):
        if word in _NUMBERS:
            return "number"
        if word in _IDS:
            return "id"
    return "id" if found and found[-1].endswith(_ID_ENDINGS) else None


def is_ordered(values: np.ndarray) -> bool:
    """Whether whole numbers look like amounts (ages, prices, counts) instead of ids.

    Neighbouring amounts have similar frequencies and similar distances to the next amount; neighbouring ids do not.
    The measure is the autocorrelation of the ranks of the frequencies, or of the distances, over the sorted distinct
    numbers, at lags 1 to 5. For numbers without order, its mean has a standard deviation of 1 / sqrt(5 n).

    Caveat: ids that were assigned by frequency look like counts, unless there are more than 200 of them with few gaps.

    Source: Kendall and Stuart, The Advanced Theory of Statistics, volume 3, on serial correlation.
    """
    distinct, counts = np.unique(values, return_counts=True)
    span = distinct[-1] - distinct[0] + 1
    if len(distinct) > _ENUMERATED and len(distinct) > _FULL * span:
        return False
    if _falls(distinct, counts) or _is_serial(np.diff(distinct)):
        return True
    # Ids that were assigned in groups, such as the banners of a campaign, also have frequencies similar to those of
    # neighbouring ids. The frequencies of amounts far from 0 are smooth: neighbours differ little more than by chance.
    is_id = distinct[distinct > 0][0] >= _FAR and _roughness(counts) > _ROUGH if (distinct > 0).any() else False
    return _is_serial(counts, _SMOOTH if is_id else _STRONG)


def _falls(distinct: np.ndarray, counts: np.ndarray) -> bool:
    """Whether the numbers begin near 0 and most are rarer than the previous one, like small counts."""
    first = int(np.argmax(counts))
    falling = len(counts) >= _COUNTS and (np.diff(counts[first:]) < 0).mean() > 0.9
    return bool(first <= 1 and -1 <= distinct[0] <= 1 and falling)


def _roughness(counts: npt.NDArray[np.int64]) -> float:
    """Returns the mean squared difference of neighbouring counts, divided by its expectation for Poisson counts."""
    return float(np.square(np.diff(counts)).sum() / max((counts[1:] + counts[:-1]).sum(), 1))


def _is_serial(figures: npt.NDArray[np.number], strong: float = _STRONG) -> bool:
    lags = min(_LAGS, len(figures) // 4)
    if not lags:
        return False
    found = ranks(figures)
    found -= found.mean()
    squares = np.square(found).sum()
    if not squares:
        return False
    mean = np.mean([(found[lag:] * found[:-lag]).sum() for lag in range(1, lags + 1)]) / squares
    return bool(mean > strong and mean * np.sqrt(lags * len(found)) > _SURE)


def ranks(figures: npt.NDArray[np.number]) -> npt.NDArray[np.float64]:
    """Returns the ranks of figures, counted from 1; equal figures have the mean of their ranks."""
    _, inverse, counts = np.unique(figures, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def list_form(profile: Profile) -> dict[str, Any] | None:
    """Returns the feature options that describe a column's lists; None if the column has no lists."""
    if profile.kind == LIST:
        return {}
    values = profile.values
    if pc.mean(pc.match_substring_regex(values, _IN_BRACKETS)).as_py() > _MOST:
        counts = {s: pc.mean(pc.match_substring(values, s)).as_py() for s in ",;| "}
        # A blank often follows another separator, so it is tried last.
        separator = next((s for s, share in counts.items() if share > _SHARE / 4), ",")
        return {"brackets": True} | ({} if separator == "," else {"separator": separator})
    for separator in _SEPARATORS + " ":
        if pc.mean(pc.match_substring(values, separator)).as_py() < _SHARE:
            continue
        parts = pc.split_pattern(values, separator).flatten()
        if separator == " " and pc.mean(pc.match_substring_regex(parts, _NUMBERED)).as_py() < _MOST:
            continue
        if len(parts.unique()) < 0.5 * len(parts):
            return {"separator": separator}
    return None


def list_values(profile: Profile, form: dict[str, Any]) -> tuple[pa.Array, int]:
    """Returns the distinct values of a column's lists, as strings, and the length of the longest list."""
    if profile.kind == LIST:
        held = profile.values
    else:
        feature = SparseFeature(profile.name, profile.name, 1, "", combiner="sum", **form)
        held = encoders.split(profile.values.cast(pa.binary()), feature)
    largest = pc.max(pc.list_value_length(held)).as_py() or 0
    flat = held.flatten()
    return _texts(flat.dictionary_decode() if pa.types.is_dictionary(flat.type) else flat), largest


def column_with(values: pa.Array, name: str, singles: Iterable[Profile]) -> tuple[Profile, float] | None:
    """Finds the single-valued column whose values match a column of lists best.

    Args:
      values: the distinct values of a column's lists; `name` is the name of this column.
      singles: Profiles of the columns with one value per row.

    Returns:
      (Profile, share of the values that it contains), or None.
    """
    best = None
    for single in singles:
        others = single.values
        others = pa.array(np.unique(others).astype(np.int64)) if single.kind == NUMBER else others
        others = _texts(others)
        both = pc.sum(pc.is_in(values, others)).as_py() or 0
        share, back = both / max(len(values), 1), both / max(len(others), 1)
        related = single.name.lower() in name.lower() or name.lower() in single.name.lower()
        if share < _SHARED or back < _BACK or (both < _FEW and not related):
            continue
        if best is None or share * back > best[0]:
            best = (share * back, single, share)
    return best and best[1:]


def _texts(values: pa.Array) -> pa.Array:
    values = values.drop_null().unique().cast(pa.string())
    return values.filter(pc.not_equal(values, ""))
