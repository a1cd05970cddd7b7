"""The draft of a feature spec as TOML, with the reason why each column is a feature or is left out."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from ctr_trainer.data.conversion import meaning
from ctr_trainer.data.conversion.profile import LIST, NUMBER, OTHER, TEXT, TIME, Profile
from ctr_trainer.features import times
from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.features.spec import RESERVED_PREFIXES

Option = str | bool | int | float | tuple[str, ...]
_TAKEN = ("label", "weight")
_DIM = 16
_FEW = 50  # Numbers in the range of a time are times only if more than this many are distinct.
_ID_SHARE = 0.95  # A column with at least this share of distinct values identifies the rows.
_MIN_ROWS = 20  # With fewer rows, all values may differ by chance.
_SKEW = 1.0
_SPREAD = 0.25  # Standard deviation of the logarithms.
_EPOCHS = ((1e9, 3e9), (1e12, 3e12))  # Seconds and milliseconds since 1970, from 2001 on.
_NAMED_EPOCHS = ((1e8, 1e11), (1e11, 1e14))  # The same, from 1973 on, for a column whose name suggests a time.
_HOURS = (1e6, 1e8)  # Numbers of the form YYMMDDHH.
_INDEX_NAMES = ("Unnamed: 0", "__index_level_")  # Names of pandas for columns of row numbers.
_ENOUGH_ROWS = 20_000  # Least rows for levels of a number. On 10,000 rows of Criteo, levels lower the AUC by 0.008.
_LEVEL_ROWS, _LEVELS, _FEWEST_LEVELS, _MOST_LEVELS = 25, 50, 5, 1000
_MOST_LENGTH = 50


@dataclasses.dataclass
class Draft:
    """The TOML lines of a spec, by section."""

    columns: tuple[str, ...] = ()  # All columns of the source. The name of a second feature must differ from them.
    label: list[str] = dataclasses.field(default_factory=list)
    ids: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    dense: list[list[str]] = dataclasses.field(default_factory=list)
    sparse: list[list[str]] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)

    @property
    def has_features(self) -> bool:
        return bool(self.dense or self.sparse)

    def set_label(self, column: str, why: str, **options: Option) -> None:
        self.label = [f"# {_plain(why)}", *_lines(dict(column=column, **options))]

    def keep(self, column: str, why: str) -> None:
        self.ids.append((column, why))

    def leave_out(self, column: str, why: str) -> None:
        self.left_out.append(f"{column or 'the first column, without a name'}: {why}")

    def add_dense(self, column: str, why: str, **options: Option) -> None:
        self.dense.append([f"# {_plain(why)}", *_lines({**_names(column), **options})])

    def add_sparse(self, column: str, why: str, suffix: str = "", **options: Option) -> None:
        """Adds a sparse feature of a column. The column's second feature needs a `suffix` for its name."""
        names = _names(column)
        if suffix:
            name = f"{names['name']}_{suffix}"
            while name in self.columns:
                name += "_"
            names = dict(name=name, column=column)
        self.sparse.append([f"# {_plain(why)}", *_lines({**names, **options})])

    def toml(self, name: str, form: CsvFormat, rows: int) -> str:
        """Returns the spec as TOML; `rows` is the number of rows that were read."""
        lines = [f"# Inferred from the first {rows:,} rows: a draft to review.", f"name = {_value(name)}"]
        if self.ids:
            lines += ["# kept next to the predictions, not trained on"]
            lines += ["ids = [", *(f"    {_value(column)},  # {_plain(why)}" for column, why in self.ids), "]"]
        lines += [f"# left out: {_plain(what)}" for what in self.left_out]
        lines += ["", "[label]", *self.label, "", "[defaults]", f"dim = {_DIM}"]
        changed = {key: value for key, value in vars(form).items() if value != getattr(CsvFormat(), key)}
        lines += ["", "[csv]", *_lines(changed)] if changed else []
        for section, features in (("dense", self.dense), ("sparse", self.sparse)):
            for feature in features:
                lines += ["", f"[[{section}]]", *feature]
        return "\n".join(lines) + "\n"


def _names(column: str) -> dict[str, str]:
    """Returns the TOML keys `name` and `column` of a feature.

    `name` has a prefix if the column's name is reserved, and escapes if it has control characters.
    """
    if not column.isprintable():
        return dict(name=ascii(column)[1:-1], column=column)
    taken = column in _TAKEN or column.startswith(RESERVED_PREFIXES)
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


def place_all(profiles: Iterable[Profile], draft: Draft) -> None:
    """Adds all columns to the draft. Lists come last, because they may share values with another column."""
    singles, listed = [], []
    for p in profiles:
        if p.kind in (TEXT, LIST) and p.present and (form := meaning.list_form(p)) is not None:
            listed.append((p, form))
        elif _place(p, draft):
            singles.append(p)
    for p, form in listed:
        _place_list(p, form, singles, draft)


def _place(p: Profile, draft: Draft) -> bool:
    """Adds a column to the draft. Returns whether its values became a single-valued sparse feature."""
    share = p.distinct / max(p.present, 1)
    own = p.present >= _MIN_ROWS and share >= _ID_SHARE
    two = p.kind == NUMBER and p.distinct == len(np.unique(p.values)) == 2
    if p.kind == OTHER or not p.present or (p.distinct == 1 and p.present == p.rows):
        why = "of an unsupported type" if p.kind == OTHER else "only one value" if p.present else "no value"
        draft.leave_out(p.name, why)
    elif _is_index(p):
        draft.leave_out(p.name, "row numbers, which pandas writes unless to_csv has index=False")
    elif p.kind == TIME or _is_time(p):
        _place_time(p, draft)
    elif two:
        low, high = np.unique(p.values)
        draft.add_sparse(p.name, f"only the numbers {low:g} and {high:g}, as two categories")
        return True
    elif p.kind == NUMBER:
        return _place_number(p, draft, own)
    elif own:
        draft.keep(p.name, f"{share:.0%} distinct values, which are too rare to learn from")
    else:
        draft.add_sparse(p.name, f"text, {p.distinct:,} distinct values")
        return True
    return False


def _is_index(p: Profile) -> bool:
    return (not p.name or p.name.startswith(_INDEX_NAMES)) and p.whole


def _is_time(p: Profile) -> bool:
    if not p.whole or meaning.is_number_name(p.name):
        return False
    low, high = p.values.min(), p.values.max()
    epochs = _NAMED_EPOCHS if meaning.is_time_name(p.name) else _EPOCHS if p.distinct > _FEW else ()
    if not meaning.is_id_name(p.name) and any(a <= low and high < b for a, b in epochs):
        return True
    may_be = p.distinct > 1 and _HOURS[0] <= low and high < _HOURS[1]
    return bool(may_be and not np.isnan(times.seconds(pa.array(np.unique(p.values)))).any())


def _place_time(p: Profile, draft: Draft) -> None:
    if len(p.orders) > 1:
        one, other = (f'derive = "{order}_weekday"' for order in p.orders)
        draft.keep(
            p.name, f"dates such as {p.values[0]}: is it day or month first? Add a feature with {one} or {other}"
        )
        return
    (order,) = p.orders
    read = f" ({order.replace('_', ' ')}: {p.values[0]})" if order else ""
    draft.keep(p.name, f"a time{read}: for --split=time:...:{p.name}")
    values = pa.array(p.values) if p.kind == NUMBER else p.values.cast(pa.string())
    seconds = times.seconds(times.year_first(values, order))
    for what in (times.HOUR, times.WEEKDAY) if not np.isnan(seconds).any() else ():
        found = len(np.unique(times.of_seconds(seconds, what)))
        if found > 1:
            why, derive = (
                f"the {what} of each time{read}, {found} distinct values",
                f"{order}_{what}" if order else what,
            )
            draft.add_sparse(p.name, why, suffix=what, derive=derive)


def _place_number(p: Profile, draft: Draft, own: bool) -> bool:
    ordered = (
        p.whole and not meaning.is_id_name(p.name) and (meaning.is_number_name(p.name) or meaning.is_ordered(p.values))
    )
    if p.whole and not ordered:
        if own and (meaning.is_id_name(p.name) or len(p.values) == p.rows):
            draft.keep(p.name, "whole numbers that differ in nearly all rows and are too rare to learn from")
            return False
        because = "with the name of an id" if meaning.is_id_name(p.name) else "distributed unlike amounts"
        draft.add_sparse(p.name, f"whole numbers {because}, {p.distinct:,} distinct values")
        return True
    low, high, skew = p.values.min(), p.values.max(), _skewness(p.values)
    transform = "log1p" if abs(skew) > _SKEW and _log_spreads(p.values, skew) else "standardize"
    shape = "skewed" if abs(skew) > _SKEW else "not skewed"
    why = f"numbers from {low:g} to {high:g}, {shape} (skewness {skew:.1f})"
    # Missing counts become 0. With their median, the AUC of DeepFM on 10,000 rows of Criteo is 0.006 lower.
    default = float(np.median(p.values)) if transform == "standardize" else 0.0
    options = dict(default=default) if p.present < p.rows and default else {}
    fill = "the median" if options else "0"
    why += f", missing in {1 - p.present / p.rows:.1%} and replaced by {fill}" if p.present < p.rows else ""
    draft.add_dense(p.name, why, transform=transform, **options)
    levels = _levels(p)
    if levels:
        why = "the same numbers as categories, for effects that are not linear"
        draft.add_sparse(p.name, why, suffix="level", quantiles=levels)
    return False


def _levels(p: Profile) -> int:
    """Returns a number of quantiles of which at most about 50 exclude the most frequent value; 0 for no quantiles."""
    _, counts = np.unique(p.values, return_counts=True)
    rest = p.present - int(counts.max())
    levels = min(_LEVELS, rest // _LEVEL_ROWS)
    if p.rows < _ENOUGH_ROWS or min(levels, p.distinct) < _FEWEST_LEVELS:
        return 0
    return min(round(levels * p.present / rest), _MOST_LEVELS)


def _log_spreads(values: np.ndarray, skew: float) -> bool:
    """Whether log1p makes a column less skewed and keeps its values distinguishable, unlike those of years."""
    logs = np.sign(values) * np.log1p(np.abs(values))
    return logs.std() > _SPREAD and abs(_skewness(logs)) < abs(skew)


def _skewness(values: np.ndarray) -> float:
    deviation = values.std()
    return float(np.mean(((values - values.mean()) / deviation) ** 3)) if deviation else 0.0


def _place_list(p: Profile, form: dict[str, Any], singles: list[Profile], draft: Draft) -> None:
    separator = form.get("separator", ",")
    if p.kind == LIST:
        why = "lists"
    elif form.get("brackets"):
        why = f"lists in brackets, separated by {separator!r}"
    else:
        why = f"values separated by {separator!r}"
    values, largest = meaning.list_values(p, form)
    if found := meaning.column_with(values, p.name, singles):
        single, share = found
        length = min(largest, _MOST_LENGTH)
        of = f"{why}; {share:.0%} of them occur in {single.name!r}, so both share rows"
        why = (
            f"{of}; a sequence, the oldest value first, for models that read histories (din, dien, bst, onetrans, sdim)"
        )
        form = {"slot": _names(single.name)["name"], **form}
        draft.add_sparse(p.name, why, combiner="none", max_length=length, **form)
        why = "the same values as a bag, for models that do not read histories"
        draft.add_sparse(p.name, why, suffix="bag", combiner="mean", max_length=length, keep="last", **form)
    else:
        draft.add_sparse(p.name, why, combiner="mean", **form)
