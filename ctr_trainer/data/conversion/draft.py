"""Drafts a feature spec: what each column becomes and why, as TOML."""

import json
import logging
from collections.abc import Collection, Iterable, Sequence
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
    """A feature spec to write: all columns but the label, and at most `count` crosses, see `measurement.crosses`.

    `ids` and `left_out` have the reasons of columns, and `weak` columns have no influence of their own on the label.
    `features` are the lines of the features by section. `_amounts` are columns of at least five numbers, and the
    options for their missing values, and `_gains` are the sums of the gains of single amounts (`dense`) and categories
    (`sparse`). `_codes` are the numbers of the values of single-valued columns, also of those in `_categories`, the
    features by column.
    """

    def __init__(self, columns: Collection[Column], labels: Labels, count: int) -> None:
        self._labels, self._taken, self._gains = labels, {c.name for c in columns}, {"dense": 0.0, "sparse": 0.0}
        self.ids, self.left_out, self.weak = dict[str, str](), dict[str, str](), list[str]()
        self.features: dict[str, list[str]] = {"dense": [], "sparse": [], "cross": []}
        self._amounts: list[tuple[Column, dict[str, Any]]] = []
        self._codes, self._categories = dict[str, Codes](), dict[str, str]()
        singles, lists = [], []
        for c in columns:
            if why := _unusable(c, labels):
                self.left_out[c.name] = f"{why}; {c.missing}"
            elif c.kind == LIST:
                lists.append(c)
            elif c.kind == TIME or _is_time(c):
                self._place_time(c)
            elif self._place_single(c):
                singles.append(c)
        for c in lists:  # They may share values with any other column.
            self._place_list(c, singles)
        share = self._gains["dense"] / max(sum(self._gains.values()), 1e-9)
        has_few_keys = sum(len(c.distinct) for c in singles) <= _KEYS * len(labels)
        for c, default in self._amounts if share >= _LEAD and has_few_keys else ():
            why = f"the same numbers in pieces, because amounts have {share:.0%} of the gain of all columns"
            self._add("dense", c, why, "pieces", transform="piecewise_linear", pieces=_quantiles(c), **default)
        for pair, before, after in crosses(labels, self._codes, self._categories.values(), count) if count else ():
            why = f"held-out log loss {after:.4f}, {before:.4f} with the single columns and the crosses above only"
            name = "_x_".join(pair)
            named = {"name": self._unused(name)} if name in self._taken else {}
            self.features["cross"] += section("[[cross]]", why, **named, columns=pair)

    def toml(self, name: str, label: Sequence[str], form: CsvFormat, rows: int) -> str:
        """Returns the spec as TOML; `label` is the `section` of the label, and `rows` is the number of rows read."""
        lines = [f"# Inferred from the first {rows:,} rows: a draft to review.", f"name = {_value(name)}"]
        ids = [f"    {_value(column)},  # {_plain(why)}" for column, why in self.ids.items()]
        lines += ["# kept next to the predictions, not trained on", "ids = [", *ids, "]"] if ids else []
        for column, why in self.left_out.items():
            lines.append(f"# left out: {_plain(column) or 'the first column, without a name'}: {_plain(why)}")
        changed = {key: value for key, value in vars(form).items() if value != getattr(CsvFormat(), key)}
        lines += [*label, *section("[defaults]", dim=16), *(section("[csv]", **changed) if changed else ())]
        return "\n".join([*lines, *sum(self.features.values(), [])]) + "\n"

    def _add(self, kind: str, c: Column, why: str, suffix: str = "", **options: Any) -> str:
        """Adds a feature of a column, and returns its name. The column's second feature needs a `suffix` for it."""
        name = self._unused(f"{_name_of(c)}_{suffix}") if suffix else _name_of(c)
        column = {} if name == c.name else {"column": c.name}
        self.features[kind] += section(f"[[{kind}]]", f"{why}; {c.missing}", name=name, **column, **options)
        return name

    def _unused(self, name: str) -> str:
        return name if name not in self._taken else self._unused(f"{name}_")

    def _place_time(self, c: Column) -> None:
        first, order = c.distinct[0].as_py(), c.orders[0]
        if len(c.orders) > 1:
            either = " or ".join(f'derive = "{each}_weekday"' for each in c.orders)
            why = f"dates such as {first}: is it day or month first? Add a feature with {either}"
            self.ids[c.name] = f"{why}; {c.missing}"
            return
        read = f" ({order.replace('_', ' ')}: {first})" if order else ""
        self.ids[c.name] = f"a time{read}: for --split=time:...:{c.name}; {c.missing}"
        texts = c.values if c.kind == NUMBER else c.values.cast(pa.string())
        seconds = times.seconds(times.year_first(texts, order))[c.present]
        if np.isnan(seconds).any():
            return
        for what in (times.HOUR, times.WEEKDAY):
            if (found := len(np.unique(times.of_seconds(seconds, what)))) > 1:
                why = f"the {what} of each time{read}, {found} distinct values"
                self._add("sparse", c, why, what, derive=f"{order}_{what}" if order else what)
        if not order and not _is_sorted(c):
            why = "the age: the time as a number, because the rows are not in its order"
            self._add("dense", c, why, "age", transform="standardize", default=float(np.median(seconds)))

    def _place_single(self, c: Column) -> bool:
        """Places a column of texts or numbers. Returns whether it became a category."""
        distinct, present = len(c.distinct), int(c.present.sum())
        numbers = c.distinct.to_numpy() if c.kind == NUMBER and distinct > 2 else None
        can_count = numbers is None or c.is_whole
        measured = measure(self._labels, c.codes, numbers, can_count)
        what = "text" if c.kind == TEXT else "whole numbers" if c.is_whole else "numbers"
        why = f"{what}, {distinct:,} distinct values; {measured.why}"
        if can_count and present >= _MIN_ROWS and distinct >= _OWN * present:
            if c.kind == NUMBER and _is_sorted(c):
                self.ids[c.name] = f"{why}; {distinct / present:.0%} are distinct, and the rows are in its order"
                return False
            if not (measured.is_amount and measured.gain):
                share = f"{distinct / present:.0%} are distinct, which are too rare to learn from"
                self.ids[c.name] = f"{why}; {share}; {c.missing}"
                return False
        if not measured.gain:
            self.weak.append(c.name)
        self._gains["dense" if measured.is_amount else "sparse"] += measured.gain
        if measured.is_amount:
            self._place_amount(c, why, has_levels=not measured.is_category)
        if not measured.is_category:
            self._codes[c.name] = buckets(c.numbers, _BASE_BUCKETS)
            return False
        name = self._add("sparse", c, why, "category" if measured.is_amount else "")
        self._codes[name] = c.codes
        self._categories[c.name] = name
        return True

    def _place_amount(self, c: Column, why: str, has_levels: bool) -> None:
        values = c.numbers[c.present]
        skew, logs = _skewness(values), np.sign(values) * np.log1p(np.abs(values))
        # The logarithms must be less skewed and keep the values distinguishable, unlike those of years.
        is_log = abs(skew) > max(_SKEW, abs(_skewness(logs))) and logs.std() > _SPREAD
        # Missing counts become 0. With their median, the AUC of DeepFM on 10,000 rows of Criteo is 0.006 lower.
        median = 0.0 if is_log or c.present.all() else float(np.median(values))
        fill = "" if c.present.all() else f", replaced by {'the median' if median else '0'}"
        why += f"; from {values.min():g} to {values.max():g}, skewness {round(skew, 1) + 0.0:g}{fill}"
        options: dict[str, Any] = {"default": median} if median else {}
        self._add("dense", c, why, transform="log1p" if is_log else "standardize", **options)
        if len(c.distinct) < _FEWEST_LEVELS:
            return
        self._amounts.append((c, options))
        if has_levels and len(c.present) >= _ENOUGH_ROWS:
            why = "the same numbers as categories, for effects that are not linear"
            self._add("sparse", c, why, "level", quantiles=_quantiles(c))

    def _place_list(self, c: Column, singles: Iterable[Column]) -> None:
        owner, values = c.lists
        lengths, distinct, options = np.bincount(owner), values.unique(), dict(c.options)
        of = f", on average {lengths.sum() / c.present.sum():.1f} of {len(distinct):,}"
        if "weight_separator" in options:
            self._add("sparse", c, f"indices, whose values are their weights{of}", combiner="sum", **options)
            return
        brackets = "lists in brackets" if options.get("brackets") else "values"
        why = f"{brackets}, separated by {options.get('separator', ',')!r}{of}" if options else f"lists{of}"
        share, single = _column_with(distinct, c.name, singles)
        if single is None:
            self._add("sparse", c, why, combiner="mean", **options)
            return
        slot = self._categories[single.name]
        options = {"slot": slot, "max_length": min(int(lengths.max()), _MOST_LENGTH), **options}
        why += f"; {share:.0%} of them occur in {single.name!r}, so both share rows; a sequence, the oldest value first"
        why += ", for models that read histories (din, dien, bst, onetrans, sdim)"
        self._add("sparse", c, why, combiner="none", **options)
        why = "the same values as a bag, for models that do not read histories"
        self._add("sparse", c, why, "bag", combiner="mean", keep="last", **options)


def _unusable(c: Column, labels: Labels) -> str:
    """Returns why a column cannot be a feature or an id, or "". Warns of a leak."""
    if not c.present.any():
        return "no value"
    if c.kind == OTHER or (len(c.distinct) == 1 and c.present.all()):
        return "of an unsupported type" if c.kind == OTHER else "only one value"
    if (not c.name or c.name.startswith(_INDEX_NAMES)) and c.is_whole:
        return "row numbers, which pandas writes unless to_csv has index=False"
    if c.kind == LIST and "weight_separator" not in c.options:
        leak = evidence_of_lists(*c.lists, labels)
    else:
        values = c.numbers if c.kind == NUMBER else c.codes if c.kind == TEXT else None
        leak = evidence(values, c.present, labels)
    if leak:
        _log.warning("column %r %s: it leaks the label, so the feature spec leaves it out", c.name, leak)
    return leak and f"{leak}. {_CURE}"


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


def _quantiles(c: Column) -> int:
    """Returns a number of quantiles of which at most about 50 exclude the most frequent value."""
    counts = pc.struct_field(pc.value_counts(c.values.drop_null()), "counts").to_numpy()
    return min(round(_LEVELS * counts.sum() / (counts.sum() - counts.max())), _MOST_LEVELS)


def _skewness(values: np.ndarray) -> float:
    deviation = values.std()
    return float(np.mean(((values - values.mean()) / deviation) ** 3)) if deviation else 0.0


def _column_with(values: pa.Array, name: str, singles: Iterable[Column]) -> tuple[float, Column | None]:
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


def _name_of(c: Column) -> str:
    """Returns the name of a column's feature: with escapes for control characters, and a prefix if it is reserved."""
    name = c.name if c.name.isprintable() else ascii(c.name)[1:-1]
    return f"feature_{name}" if name in ("label", "weight") or name.startswith(RESERVED_PREFIXES) else name


def section(header: str, why: str = "", /, **values: Any) -> list[str]:
    """Returns the lines of a section of TOML with a comment."""
    comment = [f"# {_plain(why)}"] if why else []
    return ["", header, *comment, *(f"{key} = {_value(value)}" for key, value in values.items())]


def _plain(text: str) -> str:
    """Replaces the characters that a TOML comment may not contain."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _value(value: Any) -> str:
    """Returns a value as TOML."""
    # A JSON value is a TOML value, except that TOML requires an escaped delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
