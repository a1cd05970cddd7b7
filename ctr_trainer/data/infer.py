"""Drafts a feature spec from the data, with the reason for each column's part in it."""

import contextlib
import functools
import logging
import os
import pathlib
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data import naming, ordering, parquet, profile_fields, several
from ctr_trainer.data.badrows import BadRows
from ctr_trainer.data.convert import SOURCES, TYPED
from ctr_trainer.data.draft import Draft
from ctr_trainer.data.encoded_blocks import encoded
from ctr_trainer.data.leakage import find_leaks
from ctr_trainer.data.listing import list_files
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.profile import LIST, NUMBER, OTHER, TEXT, TIME, sample_csv, sample_parquet
from ctr_trainer.features import times
from ctr_trainer.features.csv_format import CsvFormat
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.messages.errors import UserError, did_you_mean

LABEL_NAMES = (
    "label", "click", "clicked", "clicks", "is_click", "is_clicked", "target", "y",
    "converted", "conversion", "purchase",
)  # fmt: skip
_ROWS = 200_000
_FEW = 50  # Numbers of the size of a time are times only if there are more different ones than this.
_ID_SHARE = 0.95  # Share of rows with a value of their own from which on a column is an id of the row.
_MIN_ROWS = 20  # With fewer rows it means nothing that all values differ.
_SKEW = 1.0
_SPREAD = 0.25  # Standard deviation of the logarithms.
_EPOCHS = ((1e9, 3e9), (1e12, 3e12))  # Seconds and milliseconds since 1970, from 2001 on.
_NAMED_EPOCHS = ((1e8, 1e11), (1e11, 1e14))  # The same from 1973 on, for a column with the name of a time.
_HOURS = (1e6, 1e8)  # Numbers of the form YYMMDDHH.
_INDEX_NAMES = ("Unnamed: 0", "__index_level_")  # Names that pandas gives to columns of row numbers.
_ENOUGH_ROWS = 20_000  # Rows needed for levels beside a number: with 10,000 rows of Criteo, levels cost 0.008 of AUC.
_LEVEL_ROWS, _LEVELS, _FEWEST_LEVELS, _MOST_LEVELS = 25, 50, 5, 1000
_MOST_LENGTH = 50
_log = logging.getLogger(__name__)


def infer(input, output, format=None, label=None, max_bad_rows=0, progress=True):
    """Drafts a feature spec for a source, and writes it to a file.

    A column that gives the label away, see `leakage.find_leaks`, is left out of the features. A warning and a comment
    name it.

    Args:
      input: a path or pattern, or a list of them; for Parquet also a directory.
      output: path of the TOML file to write; it must not exist.
      format: `csv`, `parquet`, `libsvm` or `libffm`; None finds out whether it is `csv` or `parquet`.
      label: column of the label; None takes a 0/1 column with a usual name, or the only 0/1 column.
      max_bad_rows: number of unusable rows of text that may be left out.
      progress: show a bar if stderr is a terminal.

    Returns:
      FeatureSpec.

    Raises:
      UserError: the label cannot be found, there is no feature, or `output` exists.
    """
    output = pathlib.Path(output)
    if output.exists():
        raise UserError(f"output {output}: is there already; remove it or name another file")
    if format is None:
        format = "parquet" if parquet.is_parquet(list_files(input)[0].path) else "csv"
    if format in ("libsvm", "libffm"):
        make_draft, form, rows = _of_lines(input, format, max_bad_rows)
    else:
        make_draft, form, rows = _of_columns(input, format, label, max_bad_rows, progress)
    output.parent.mkdir(parents=True, exist_ok=True)
    written = output.with_name(f".{output.name}.tmp")
    try:
        written.write_text(make_draft({}).toml(output.stem, form, rows), encoding="utf-8")
        spec = FeatureSpec.load(written)
        leaks = _leaks(input, format, spec, max_bad_rows)
        if leaks:
            written.write_text(make_draft(leaks).toml(output.stem, form, rows), encoding="utf-8")
            spec = FeatureSpec.load(written)
        os.replace(written, output)
    finally:
        written.unlink(missing_ok=True)
    return spec


def _leaks(input: str | list[str], format: str, spec: FeatureSpec, max_bad_rows: int) -> dict[str, str]:
    """Returns why each column that gives the label away does so, by column; logs a warning of each."""
    bad_rows = BadRows(max_bad_rows, unit="row" if format in TYPED else "line")
    read = functools.partial(SOURCES[format], input, spec)
    with contextlib.closing(encoded(read, spec, bad_rows, Observations(spec), measured=False)) as tables:
        leaks = find_leaks((table for table, _ in tables), spec)
    for leak in leaks:
        _log.warning("%s: it gives the label away, so the feature spec leaves it out; see its comment", leak)
    return {leak.column: f"{leak.why}. Add it only if it is known before the label" for leak in leaks}


def _of_columns(
    input: str | list[str], format: str, label: str | None, max_bad_rows: int, progress: bool
) -> tuple[Callable[[dict[str, str]], Draft], CsvFormat, int]:
    """Profiles files with columns.

    Returns:
      (f(leaks by column) that makes the Draft, CsvFormat, number of rows).
    """
    if format == "csv":
        profiles, form, rows = sample_csv(input, _ROWS, max_bad_rows, progress)
    else:
        (profiles, rows), form = sample_parquet(input, _ROWS, progress), CsvFormat()
    target = _label_column(profiles, label)

    def make_draft(leaks: dict[str, str]) -> Draft:
        draft = Draft(tuple(p.name for p in profiles))
        _set_label(target, draft)
        for p in profiles:
            if p.name in leaks:
                draft.leave_out(p.name, leaks[p.name])
        _place_all([p for p in profiles if p is not target and p.name not in leaks], draft)
        if not draft.has_features:
            raise UserError(
                f"input {input}: apart from the label {target.name!r}"
                + (f" and columns that give it away ({', '.join(leaks)})" if leaks else "")
                + ", it has no column to make a feature of"
            )
        return draft

    return make_draft, form, rows


def _of_lines(
    input: str | list[str], format: str, max_bad_rows: int
) -> tuple[Callable[[dict[str, str]], Draft], CsvFormat, int]:
    """Profiles files whose lines are a label and weighted indices; returns what `_of_columns` does."""
    label, fields, rows = profile_fields.sample(input, format, _ROWS, max_bad_rows)
    draft = Draft((label.name, *(field.column for field in fields)))
    _set_label(label, draft)
    for field in fields:
        if field.most == 1 and field.ones and format == "libffm":
            draft.add_sparse(field.column, "one index a line, its value 1")
        else:
            why = f"up to {field.most:,} indices a line, each with its value as the weight"
            draft.add_sparse(field.column, why, combiner="sum", weight_separator=":")
    if not draft.has_features:
        raise UserError(f"input {input}: its lines have labels and nothing else")
    # A field of several indices has no value of its own that could give the label away.
    return lambda leaks: draft, CsvFormat(), rows


def _label_column(profiles, name):
    if name:
        found = [p for p in profiles if p.name == name]
        if not found:
            names = [p.name for p in profiles]
            hint = did_you_mean(name, names)
            raise UserError(f"--label={name}: no such column; there are {', '.join(names)}{hint}")
        return found[0]
    binary = [p for p in profiles if p.kind == NUMBER and set(np.unique(p.values)) == {0, 1}]
    named = sorted(
        (p for p in binary if p.name.lower() in LABEL_NAMES), key=lambda p: LABEL_NAMES.index(p.name.lower())
    )
    if named or len(binary) == 1:
        return (named or binary)[0]
    which = f"the columns of 0 and 1 are {', '.join(p.name for p in binary)}" if binary else "none has 0 and 1 only"
    every = ", ".join(p.name for p in profiles)
    raise UserError(f"which column is the label? Name it with --label: {which}; all are {every}")


def _set_label(p, draft):
    values = p.values
    if p.kind == NUMBER and set(np.unique(values)) == {-1, 1}:
        draft.set_label(p.name, f"-1 and 1; {(values == 1).mean():.2%} are 1", threshold=0.0)
    elif p.kind == NUMBER and set(np.unique(values)) <= {0, 1}:
        draft.set_label(p.name, f"0 and 1; {values.mean():.2%} are 1")
    elif p.kind == NUMBER:
        why = f"numbers from {values.min():g} to {values.max():g}: check from which on one is positive"
        draft.set_label(p.name, why, threshold=float(np.median(values)))
    elif p.kind == TEXT and p.distinct == 2:
        counts = sorted(pc.value_counts(values).to_pylist(), key=lambda count: count["counts"])
        both = ", ".join(repr(count["values"]) for count in counts)
        why = f"the rarer of {both}: check that it is the positive one"
        draft.set_label(p.name, why, positive=counts[0]["values"])
    else:
        raise UserError(f"--label={p.name}: has {p.distinct} different values; a label has two, or is a number")


def _place_all(profiles, draft):
    """Decides what each column becomes. Lists come last, since their values may be those of another column."""
    singles, listed = [], []
    for p in profiles:
        if p.kind in (TEXT, LIST) and p.present and (form := several.form_of(p)) is not None:
            listed.append((p, form))
        elif _place(p, draft):
            singles.append(p)
    for p, form in listed:
        _place_list(p, form, singles, draft)


def _place(p, draft):
    """Adds a column to the draft; -> whether it became a single-valued sparse feature of its own values."""
    share = p.distinct / max(p.present, 1)
    own = p.present >= _MIN_ROWS and share >= _ID_SHARE
    two = p.kind == NUMBER and p.distinct == len(np.unique(p.values)) == 2
    if p.kind == OTHER or not p.present or (p.distinct == 1 and p.present == p.rows):
        why = "of a type that no feature is made of" if p.kind == OTHER else "one value" if p.present else "no value"
        draft.leave_out(p.name, why)
    elif _is_index(p):
        draft.leave_out(p.name, "the numbers of the rows, which pandas writes (to_csv(index=False) does not)")
    elif p.kind == TIME or _is_time(p):
        _place_time(p, draft)
    elif two:
        low, high = np.unique(p.values)
        draft.add_sparse(p.name, f"the two numbers {low:g} and {high:g}, a category each")
        return True
    elif p.kind == NUMBER:
        return _place_number(p, draft, own)
    elif own:
        draft.keep(p.name, f"{share:.0%} of the values are there once only, so nothing is learned of one")
    else:
        draft.add_sparse(p.name, f"text, {p.distinct:,} different values")
        return True
    return False


def _is_index(p):
    return (not p.name or p.name.startswith(_INDEX_NAMES)) and p.whole


def _is_time(p):
    if not p.whole or naming.is_number(p.name):
        return False
    low, high = p.values.min(), p.values.max()
    epochs = _NAMED_EPOCHS if naming.is_time(p.name) else _EPOCHS if p.distinct > _FEW else ()
    if not naming.is_id(p.name) and any(a <= low and high < b for a, b in epochs):
        return True
    may_be = p.distinct > 1 and _HOURS[0] <= low and high < _HOURS[1]
    return bool(may_be and not np.isnan(times.seconds(pa.array(np.unique(p.values)))).any())


def _place_time(p, draft):
    draft.keep(p.name, f"a time: for --split=time:...:{p.name}")
    values = pa.array(p.values) if p.kind == NUMBER else p.values
    seconds = times.seconds(values if p.kind == NUMBER else values.cast(pa.string()))
    for what in times.DERIVED if not np.isnan(seconds).any() else ():
        found = len(np.unique(times.of_seconds(seconds, what)))
        if found > 1:
            draft.add_sparse(p.name, f"the {what} of each time, {found} different ones", suffix=what, derive=what)


def _place_number(p, draft, own):
    ordered = p.whole and not naming.is_id(p.name) and (naming.is_number(p.name) or ordering.is_ordered(p.values))
    if p.whole and not ordered:
        if own and (naming.is_id(p.name) or len(p.values) == p.rows):
            draft.keep(p.name, "a whole number of nearly each row's own, so nothing is learned of one")
            return False
        because = "the name of an id" if naming.is_id(p.name) else "in no order that amounts have"
        draft.add_sparse(p.name, f"whole numbers, {p.distinct:,} different ones, {because}")
        return True
    low, high, skew = p.values.min(), p.values.max(), _skewness(p.values)
    transform = "log1p" if abs(skew) > _SKEW and _log_spreads(p.values, skew) else "standardize"
    shape = "skewed" if abs(skew) > _SKEW else "not skewed"
    why = f"numbers from {low:g} to {high:g}, {shape} (skewness {skew:.1f})"
    # A count that is missing is no usual count: with the medians, DeepFM's AUC on 10,000 rows of Criteo is 0.006 lower.
    default = float(np.median(p.values)) if transform == "standardize" else 0.0
    options = dict(default=default) if p.present < p.rows and default else {}
    stands = "the median stands" if options else "0 stands"
    why += f", missing in {1 - p.present / p.rows:.1%}: {stands} for them" if p.present < p.rows else ""
    draft.add_dense(p.name, why, transform=transform, **options)
    levels = _levels(p)
    if levels:
        why = "the same numbers as categories, for steps that no straight line has"
        draft.add_sparse(p.name, why, suffix="level", quantiles=levels)
    return False


def _levels(p):
    """-> number of quantiles for a column, so that about 50 lie beside its most frequent value; 0 for no quantiles."""
    _, counts = np.unique(p.values, return_counts=True)
    rest = p.present - int(counts.max())
    levels = min(_LEVELS, rest // _LEVEL_ROWS)
    if p.rows < _ENOUGH_ROWS or min(levels, p.distinct) < _FEWEST_LEVELS:
        return 0
    return min(round(levels * p.present / rest), _MOST_LEVELS)


def _log_spreads(values, skew):
    """-> whether log1p makes a column less skewed and keeps its values apart; it does not for years, say."""
    logs = np.sign(values) * np.log1p(np.abs(values))
    return logs.std() > _SPREAD and abs(_skewness(logs)) < abs(skew)


def _skewness(values):
    deviation = values.std()
    return float(np.mean(((values - values.mean()) / deviation) ** 3)) if deviation else 0.0


def _place_list(p, form, singles, draft):
    separator = form.get("separator", ",")
    if p.kind == LIST:
        why = "lists"
    elif form.get("brackets"):
        why = f"lists in brackets, of values that {separator!r} separates"
    else:
        why = f"values that {separator!r} separates"
    values, largest = several.values_of(p, form)
    if found := several.column_of(values, p.name, singles):
        single, share = found
        length = min(largest, _MOST_LENGTH)
        of = f"{why}, {share:.0%} of which {single.name!r} has too, so they share its rows"
        why = f"{of}: in order, the oldest first, for models of histories (din, dien, bst)"
        form = {"slot": draft.slot_of(single.name), **form}
        draft.add_sparse(p.name, why, combiner="none", max_length=length, **form)
        why = "the same as a bag, for models that read no histories"
        draft.add_sparse(p.name, why, suffix="bag", combiner="mean", max_length=length, keep="last", **form)
    else:
        draft.add_sparse(p.name, why, combiner="mean", **form)
