"""Drafts a feature spec: what each column becomes and why, as TOML."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.conversion.leakage import evidence, evidence_of_lists
from ctr_trainer.data.conversion.measurement import Codes, Labels, buckets, crosses, measure
from ctr_trainer.data.conversion.sample import LIST, NUMBER, OTHER, TEXT, TIME, Column
from ctr_trainer.features import times
from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.features.spec import RESERVED_PREFIXES

Option = str | bool | int | float | tuple[str, ...]
_CURE = "Add it only if it is known before the label, or as a second label"
_OWN, _MIN_ROWS = 0.95, 20  # A column with this share of distinct values identifies the rows.
_INDEX_NAMES = ("Unnamed: 0", "__index_level_")  # Names of pandas for columns of row numbers.
_EPOCHS, _YEARS = ((8e8, 3e9), (8e11, 3e12)), 0.95  # Seconds or milliseconds, from 1995 on, of at most 24 years.
_HOURS = (1e6, 1e8)  # Numbers of the form YYMMDDHH.
_REPEATS = 5  # Seconds and milliseconds rarely occur more often than this, unless the rows are in their order.
_SKEW, _SPREAD = 1.0, 0.25  # The least skewness, and the least standard deviation of the logarithms, for log1p.
_ENOUGH_ROWS = 20_000  # Least rows for levels of a number. On 10,000 rows of Criteo, levels lower the AUC by 0.008.
_LEVELS, _FEWEST_LEVELS, _MOST_LEVELS, _MOST_LENGTH = 50, 5, 1000, 50
# Numbers get pieces if amounts have this share of the gains of single columns, and categories at most this many keys
# per row.
_LEAD, _KEYS = 1 / 3, 0.1
_SHARED, _BACK = 0.5, 0.1  # Least share of the list values that occur in the other column, and vice versa.
_BASE_BUCKETS = 32  # Buckets of an amount, next to which crosses are measured.
_FEW = 20  # Two columns may have fewer distinct values than this in common by chance.
_log = logging.getLogger(__name__)


class Draft:
    """A feature spec to write.

    `missing` has each column of the source and its share of missing values; other names of features must differ from
    them. `label` is the label's column, its options and the reason; `ids` and `left_out` have the reasons of columns.
    `weak` columns have no influence of their own on the label. `amounts` are columns of at least five numbers, and the
    options for their missing values. `gains` are the sums of the gains of single amounts (`dense`) and categories
    (`sparse`). `features` are the lines of each feature by section. `codes` are the numbers of the values of each
    single-valued column, and `categories` those that are categories.
    """

    def __init__(self, missing: dict[str, str], label: tuple[str, dict[str, Option], str]) -> None:
        self.missing, self.label, self.gains = missing, label, {"dense": 0.0, "sparse": 0.0}
        self.ids: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.weak: list[str] = []
        self.amounts: list[tuple[Column, dict[str, Any]]] = []
        self.features: dict[str, list[list[str]]] = {"dense": [], "sparse": [], "cross": []}
        self.codes: dict[str, Codes] = {}
        self.categories: list[str] = []

    def add(self, section: str, column: str, why: str, suffix: str = "", **options: Option) -> str:
        """Adds a feature of a column, and returns its name. The column's second feature needs a `suffix` for it."""
        names = _names_of(column)
        if suffix:
            names = dict(name=self._unused(f"{names['name']}_{suffix}"), column=column)
        self.features[section].append([f"# {_plain(why)}; {self.missing[column]}", *_lines({**names, **options})])
        return names["name"]

    def cross(self, labels: Labels, count: int) -> None:
        """Adds the crosses, at most `count`, that `measurement.crosses` finds."""
        for pair, before, after in crosses(labels, self.codes, self.categories, count) if count else ():
            why = f"held-out log loss {after:.4f}, {before:.4f} with the single columns and the crosses above only"
            columns = tuple(_names_of(column)["name"] for column in pair)
            name = "_x_".join(columns)
            named = {"name": self._unused(name)} if name in self.missing else {}
            self.features["cross"].append([f"# {why}", *_lines({**named, "columns": columns})])

    def _unused(self, name: str) -> str:
        return name if name not in self.missing else self._unused(f"{name}_")

    def toml(self, name: str, form: CsvFormat, rows: int) -> str:
        """Returns the spec as TOML; `rows` is the number of rows that were read."""
        lines = [f"# Inferred from the first {rows:,} rows: a draft to review.", f"name = {_value(name)}"]
        ids = [f"    {_value(column)},  # {_plain(why)}; {self.missing[column]}" for column, why in self.ids.items()]
        lines += ["# kept next to the predictions, not trained on", "ids = [", *ids, "]"] if ids else []
        for column, why in self.left_out.items():
            named = _plain(column) or "the first column, without a name"
            lines.append(f"# left out: {named}: {_plain(why)}; {self.missing[column]}")
        column, options, why = self.label
        lines += ["", "[label]", f"# {_plain(why)}; {self.missing[column]}", *_lines(dict(column=column, **options))]
        lines += ["", "[defaults]", "dim = 16"]
        changed = {key: value for key, value in vars(form).items() if value != getattr(CsvFormat(), key)}
        lines += ["", "[csv]", *_lines(changed)] if changed else []
        for section, features in self.features.items():
            for feature in features:
                lines += ["", f"[[{section}]]", *feature]
        return "\n".join(lines) + "\n"


def place_all(columns: Iterable[Column], labels: Labels, draft: Draft) -> None:
    """Adds all columns to the draft. Lists come last, because they may share values with another column."""
    singles, lists = [], []
    for c in columns:
        if not c.present.any():
            draft.left_out[c.name] = "no value"
        elif c.kind == OTHER or (len(c.distinct) == 1 and c.present.all()):
            draft.left_out[c.name] = "of an unsupported type" if c.kind == OTHER else "only one value"
        elif (not c.name or c.name.startswith(_INDEX_NAMES)) and c.is_whole:
            draft.left_out[c.name] = "row numbers, which pandas writes unless to_csv has index=False"
        elif leak := _leak(c, labels):
            draft.left_out[c.name] = f"{leak}. {_CURE}"
            _log.warning("column %r %s: it leaks the label, so the feature spec leaves it out", c.name, leak)
        elif c.kind == LIST:
            lists.append(c)
        elif c.kind == TIME or _is_time(c):
            _place_time(c, draft)
        elif _place_single(c, labels, draft):
            singles.append(c)
    for c in lists:
        _place_list(c, singles, draft)
    share = draft.gains["dense"] / max(sum(draft.gains.values()), 1e-9)
    has_few_keys = sum(len(c.distinct) for c in singles) <= _KEYS * len(labels)
    for c, default in draft.amounts if share >= _LEAD and has_few_keys else ():
        why = f"the same numbers in pieces, because amounts have {share:.0%} of the gain of all columns"
        draft.add("dense", c.name, why, suffix="pieces", transform="piecewise_linear", pieces=_quantiles(c), **default)


def _leak(c: Column, labels: Labels) -> str:
    if c.kind == LIST and "weight_separator" not in c.options:
        return evidence_of_lists(*c.lists, labels)
    values = c.numbers if c.kind == NUMBER else c.codes if c.kind == TEXT else None
    return evidence(values, c.present, labels)


def _is_time(c: Column) -> bool:
    if not c.is_whole or len(c.distinct) == 1:
        return False
    numbers = c.numbers[c.present]
    low, high = numbers.min(), numbers.max()
    if any(first <= low and high < end and high - low < _YEARS * first for first, end in _EPOCHS):
        return len(numbers) <= _REPEATS * len(c.distinct) or _is_sorted(c) or not (numbers % 60).any()
    return _HOURS[0] <= low and high < _HOURS[1] and not np.isnan(times.seconds(c.distinct)).any()


def _is_sorted(c: Column) -> bool:
    ranks = pc.rank(c.values.drop_null(), tiebreaker="dense").to_numpy().astype(np.int64)
    return bool((np.diff(ranks) >= 0).all())


def _place_time(c: Column, draft: Draft) -> None:
    first, order = c.distinct[0].as_py(), c.orders[0]
    if len(c.orders) > 1:
        one, other = (f'derive = "{order}_weekday"' for order in c.orders)
        draft.ids[c.name] = f"dates such as {first}: is it day or month first? Add a feature with {one} or {other}"
        return
    read = f" ({order.replace('_', ' ')}: {first})" if order else ""
    draft.ids[c.name] = f"a time{read}: for --split=time:...:{c.name}"
    texts = c.values if c.kind == NUMBER else c.values.cast(pa.string())
    seconds = times.seconds(times.year_first(texts, order))[c.present]
    if np.isnan(seconds).any():
        return
    for what in (times.HOUR, times.WEEKDAY):
        if (found := len(np.unique(times.of_seconds(seconds, what)))) > 1:
            why = f"the {what} of each time{read}, {found} distinct values"
            draft.add("sparse", c.name, why, suffix=what, derive=f"{order}_{what}" if order else what)
    if not order and not _is_sorted(c):
        why = "the age: the time as a number, because the rows are not in its order"
        draft.add("dense", c.name, why, suffix="age", transform="standardize", default=float(np.median(seconds)))


def _place_single(c: Column, labels: Labels, draft: Draft) -> bool:
    """Adds a column of texts or numbers to the draft. Returns whether it became a category."""
    distinct, present = len(c.distinct), int(c.present.sum())
    numbers = c.distinct.to_numpy() if c.kind == NUMBER and distinct > 2 else None
    can_count = numbers is None or c.is_whole
    measured = measure(labels, c.codes, numbers, can_count)
    what = "text" if c.kind == TEXT else "whole numbers" if c.is_whole else "numbers"
    why = f"{what}, {distinct:,} distinct values; {measured.why}"
    if can_count and present >= _MIN_ROWS and distinct >= _OWN * present and not (measured.is_amount and measured.gain):
        draft.ids[c.name] = f"{why}; {distinct / present:.0%} are distinct, which are too rare to learn from"
        return False
    if not measured.gain:
        draft.weak.append(c.name)
    name, codes = c.name, c.codes if numbers is None or measured.is_category else buckets(c.numbers, _BASE_BUCKETS)
    draft.gains["dense" if measured.is_amount else "sparse"] += measured.gain
    if measured.is_amount:
        _place_amount(c, why, draft, has_levels=not measured.is_category)
    if measured.is_category:
        name = draft.add("sparse", c.name, why, suffix="category" if measured.is_amount else "")
        draft.categories.append(name)
    draft.codes[name] = codes
    return measured.is_category


def _place_amount(c: Column, why: str, draft: Draft, has_levels: bool) -> None:
    values = c.numbers[c.present]
    skew, logs = _skewness(values), np.sign(values) * np.log1p(np.abs(values))
    # The logarithms must be less skewed and keep the values distinguishable, unlike those of years.
    is_log = abs(skew) > max(_SKEW, abs(_skewness(logs))) and logs.std() > _SPREAD
    # Missing counts become 0. With their median, the AUC of DeepFM on 10,000 rows of Criteo is 0.006 lower.
    median = 0.0 if is_log or c.present.all() else float(np.median(values))
    fill = "" if c.present.all() else f", replaced by {'the median' if median else '0'}"
    why += f"; from {values.min():g} to {values.max():g}, skewness {round(skew, 1) + 0.0:g}{fill}"
    options: dict[str, Any] = {"default": median} if median else {}
    draft.add("dense", c.name, why, transform="log1p" if is_log else "standardize", **options)
    if len(c.distinct) < _FEWEST_LEVELS:
        return
    draft.amounts.append((c, options))
    if has_levels and len(c.present) >= _ENOUGH_ROWS:
        why = "the same numbers as categories, for effects that are not linear"
        draft.add("sparse", c.name, why, suffix="level", quantiles=_quantiles(c))


def _quantiles(c: Column) -> int:
    """Returns a number of quantiles of which at most about 50 exclude the most frequent value."""
    counts = pc.struct_field(pc.value_counts(c.values.drop_null()), "counts").to_numpy()
    return min(round(_LEVELS * counts.sum() / (counts.sum() - counts.max())), _MOST_LEVELS)


def _skewness(values: np.ndarray) -> float:
    deviation = values.std()
    return float(np.mean(((values - values.mean()) / deviation) ** 3)) if deviation else 0.0


def _place_list(c: Column, singles: Sequence[Column], draft: Draft) -> None:
    owner, values = c.lists
    lengths, distinct, options = np.bincount(owner), values.unique(), dict(c.options)
    of = f", on average {lengths.sum() / c.present.sum():.1f} of {len(distinct):,}"
    if "weight_separator" in options:
        draft.add("sparse", c.name, f"indices, whose values are their weights{of}", combiner="sum", **options)
        return
    brackets = "lists in brackets" if options.get("brackets") else "values"
    why = f"{brackets}, separated by {options.get('separator', ',')!r}" if options else "lists"
    share, single = _column_with(distinct, c.name, singles)
    if single is None:
        draft.add("sparse", c.name, why + of, combiner="mean", **options)
        return
    options = {"slot": _names_of(single.name)["name"], "max_length": min(int(lengths.max()), _MOST_LENGTH), **options}
    why += f"{of}; {share:.0%} of them occur in {single.name!r}, so both share rows; a sequence, the oldest value first"
    why += ", for models that read histories (din, dien, bst, onetrans, sdim)"
    draft.add("sparse", c.name, why, combiner="none", **options)
    why = "the same values as a bag, for models that do not read histories"
    draft.add("sparse", c.name, why, suffix="bag", combiner="mean", keep="last", **options)


def _column_with(values: pa.Array, name: str, singles: Sequence[Column]) -> tuple[float, Column | None]:
    """Returns the category whose values match the values of a list best, and the share of these that it has."""
    best: tuple[float, float, Column | None] = (0.0, 0.0, None)
    for single in singles:
        others = single.distinct.cast(pa.int64()) if single.is_whole else single.distinct
        both = int(pc.sum(pc.is_in(values, others.cast(pa.string()).cast(pa.binary()))).as_py() or 0)
        share, back = both / max(len(values), 1), both / len(others)
        is_related = single.name.lower() in name.lower() or name.lower() in single.name.lower()
        if share >= _SHARED and back >= _BACK and (both >= _FEW or is_related):
            best = max(best, (share * back, share, single), key=lambda each: each[0])
    return best[1:]


def _names_of(column: str) -> dict[str, str]:
    """Returns the TOML keys `name` and `column` of a feature.

    `name` has a prefix if the column's name is reserved, and escapes if it has control characters.
    """
    if not column.isprintable():
        return dict(name=ascii(column)[1:-1], column=column)
    taken = column in ("label", "weight") or column.startswith(RESERVED_PREFIXES)
    return dict(name=f"feature_{column}", column=column) if taken else dict(name=column)


def _lines(values: Mapping[str, Option]) -> list[str]:
    return [f"{key} = {_value(value)}" for key, value in values.items()]


def _plain(text: str) -> str:
    """Replaces the characters that a TOML comment may not contain."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _value(value: Option) -> str:
    """Returns a value as TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    # A JSON string is a TOML string, except that TOML requires an escaped delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
