"""Columns with several values per row: how lists are written, and which other column has the same values."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data import lists
from ctr_trainer.data.profile import LIST, NUMBER
from ctr_trainer.features.columns import SparseFeature

_SEPARATORS = "|;,^"
_SHARE = 0.2  # Least share of the values that hold the separator.
_IN_BRACKETS = r"^\s*\[.*\]\s*$|^\s*\(.*\)\s*$|^\s*\{.*\}\s*$"
_NUMBERED = r"^[A-Za-z_-]{0,4}\d+$"  # Parts such as 17 or i17: blanks may separate these, not words.
_MOST = 0.95
_SHARED, _BACK = 0.5, 0.1  # Least share of a list's values that the other column has, and the other way round.
_FEW = 20  # Two columns may have this number of different values in common by chance.


def form_of(profile):
    """-> the options of a feature for the way in which a column's lists are written; None if it holds no lists."""
    if profile.kind == LIST:
        return {}
    values = profile.values
    if pc.mean(pc.match_substring_regex(values, _IN_BRACKETS)).as_py() > _MOST:
        counts = {s: pc.mean(pc.match_substring(values, s)).as_py() for s in ",;| "}
        # A blank may follow a comma, so a blank is the separator only if there is no other.
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


def values_of(profile, form):
    """-> (the different values of a column's lists, as strings; the length of the longest list)."""
    if profile.kind == LIST:
        held = profile.values
    else:
        feature = SparseFeature(profile.name, profile.name, 1, "", combiner="sum", **form)
        held = lists.split(profile.values.cast(pa.binary()), feature)
    largest = pc.max(pc.list_value_length(held)).as_py() or 0
    flat = held.flatten()
    return _texts(flat.dictionary_decode() if pa.types.is_dictionary(flat.type) else flat), largest


def column_of(values, name, singles):
    """-> (Profile of the single-valued column that has the same values, share of `values` that it has); or None.

    Args:
      values: the different values of a column's lists.
      name: name of the column of lists.
      singles: Profiles of the columns with one value per row.
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


def _texts(values):
    values = values.drop_null().unique().cast(pa.string())
    return values.filter(pc.not_equal(values, ""))
