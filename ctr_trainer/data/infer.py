"""A first feature spec from the data: which column is what, and why."""

import dataclasses
import json
import os
import pathlib

import numpy as np
import pyarrow.compute as pc

from ctr_trainer.data import parquet
from ctr_trainer.data.listing import list_files
from ctr_trainer.data.profile import LIST, NUMBER, OTHER, TEXT, TIME, sample_csv, sample_parquet
from ctr_trainer.errors import UserError
from ctr_trainer.features.csv_format import CsvFormat
from ctr_trainer.features.spec import RESERVED_PREFIXES, FeatureSpec

LABEL_NAMES = (
    "label", "click", "clicked", "clicks", "is_click", "is_clicked", "target", "y",
    "converted", "conversion", "purchase",
)  # fmt: skip
_ROWS = 200_000
_DIM = 16
_FEW = 50  # different numbers that are more likely names than amounts
_ID_SHARE = 0.95  # of the rows with a value of their own
_MIN_ROWS = 20  # below, that all differ says nothing
_SKEW = 1.0
_SEPARATORS = "|;,^"
_BAG_SHARE = 0.2  # of the values that hold the separator
_EPOCHS = ((1e9, 3e9), (1e12, 3e12))  # seconds and milliseconds since 1970, from 2001 on
_TAKEN = ("label", "weight")
_ID_ENDINGS = ("id", "_no", "_code", "code", "zip", "category", "type")


@dataclasses.dataclass
class _Draft:
    """The parts of the spec: its TOML lines by section."""

    ids: list = dataclasses.field(default_factory=list)
    dense: list = dataclasses.field(default_factory=list)
    sparse: list = dataclasses.field(default_factory=list)
    left_out: list = dataclasses.field(default_factory=list)


def infer(input, output, format=None, label=None, max_bad_rows=0, progress=True):
    """Writes a feature spec for a CSV or Parquet source; -> FeatureSpec.

    Args:
      input: a path or pattern, or a list of them; of Parquet also a directory.
      output: the TOML file to write; must not be there yet.
      format: `csv` or `parquet`; None to see.
      label: its column; None to guess: a 0/1 column of a usual name, else the only 0/1 column.
      max_bad_rows: of a CSV file.
      progress: show a bar where stderr is a terminal.

    Raises:
      UserError: no label can be told, there is no feature, or `output` is there.
    """
    output = pathlib.Path(output)
    if output.exists():
        raise UserError(f"output {output}: is there already; remove it or name another file")
    if format is None:
        format = "parquet" if parquet.is_parquet(list_files(input)[0].path) else "csv"
    if format == "csv":
        profiles, form, rows = sample_csv(input, _ROWS, max_bad_rows, progress)
    else:
        (profiles, rows), form = sample_parquet(input, _ROWS, progress), CsvFormat()
    target = _label_column(profiles, label)
    draft = _Draft()
    for profile in profiles:
        if profile is not target:
            _place(profile, draft)
    if not draft.dense and not draft.sparse:
        raise UserError(f"input {input}: beside the label {target.name!r} it has no column to make a feature of")
    text = _toml(output.stem, target, draft, form, rows)
    output.parent.mkdir(parents=True, exist_ok=True)
    written = output.with_name(f".{output.name}.tmp")
    try:
        written.write_text(text, encoding="utf-8")
        spec = FeatureSpec.load(written)
        os.replace(written, output)
    finally:
        written.unlink(missing_ok=True)
    return spec


def _label_column(profiles, name):
    if name:
        found = [p for p in profiles if p.name == name]
        if not found:
            raise UserError(f"--label={name}: no such column; there are {', '.join(p.name for p in profiles)}")
        return found[0]
    binary = [p for p in profiles if p.kind == NUMBER and set(np.unique(p.values)) == {0, 1}]
    named = sorted(
        (p for p in binary if p.name.lower() in LABEL_NAMES), key=lambda p: LABEL_NAMES.index(p.name.lower())
    )
    if named or len(binary) == 1:
        return (named or binary)[0]
    which = f"the columns of 0 and 1 are {', '.join(p.name for p in binary)}" if binary else "none has 0 and 1 only"
    raise UserError(f"which column is the label? Name it with --label: {which}; all are {_names(profiles)}")


def _names(profiles):
    return ", ".join(p.name for p in profiles)


def _place(p, draft):
    """Decides what a column is, and adds it to the draft."""
    share = p.distinct / max(p.present, 1)
    own = p.present >= _MIN_ROWS and share >= _ID_SHARE
    if p.kind == OTHER or not p.present or (p.distinct == 1 and p.present == p.rows):
        why = "of a type that no feature is made of" if p.kind == OTHER else "one value" if p.present else "no value"
        draft.left_out.append(f"{p.name}: {why}")
    elif p.kind == TIME or (p.kind == NUMBER and p.whole and _is_epoch(p)):
        draft.ids.append((p.name, "a time: for --split=time, or make hour and weekday of it"))
    elif p.kind == LIST:
        draft.sparse.append(_feature(p.name, "lists", combiner="mean"))
    elif p.kind == NUMBER:
        _place_number(p, draft, own)
    elif separator := _separator(p):
        why = f"values that {separator!r} separates"
        draft.sparse.append(_feature(p.name, why, combiner="mean", separator=separator))
    elif own:
        draft.ids.append((p.name, f"{share:.0%} of the values are there once only, so nothing is learned of one"))
    else:
        draft.sparse.append(_feature(p.name, f"text, {p.distinct:,} different values"))


def _place_number(p, draft, own):
    named = p.name.lower().endswith(_ID_ENDINGS)
    if p.whole and own and (named or len(p.values) == p.rows):
        draft.ids.append((p.name, "a whole number of nearly each row's own, so nothing is learned of one"))
    elif p.whole and (named or p.distinct <= _FEW):
        why = f"whole numbers, {p.distinct:,} different ones" + (", and the name of an id" if named else "")
        draft.sparse.append(_feature(p.name, why))
    else:
        low, high, skew = p.values.min(), p.values.max(), _skewness(p.values)
        transform, shape = ("log1p", "skewed") if abs(skew) > _SKEW else ("standardize", "not skewed")
        why = f"numbers from {low:g} to {high:g}, {shape} (skewness {skew:.1f})"
        default = float(np.median(p.values))
        options = dict(default=default) if p.present < p.rows and default else {}
        why += f", missing in {1 - p.present / p.rows:.1%}: the median stands for them" if options else ""
        draft.dense.append(_feature(p.name, why, transform=transform, **options))


def _is_epoch(p):
    return p.distinct > _FEW and any(low <= p.values.min() and p.values.max() < high for low, high in _EPOCHS)


def _skewness(values):
    deviation = values.std()
    return float(np.mean(((values - values.mean()) / deviation) ** 3)) if deviation else 0.0


def _separator(p):
    """-> what separates the values of a text column, if many have it and their parts come again."""
    for separator in _SEPARATORS:
        if pc.mean(pc.match_substring(p.values, separator)).as_py() < _BAG_SHARE:
            continue
        parts = pc.split_pattern(p.values, separator).flatten()
        if len(parts.unique()) < 0.5 * len(parts):
            return separator
    return None


def _feature(column, why, **options):
    taken = column in _TAKEN or column.startswith(RESERVED_PREFIXES)
    names = dict(name=f"feature_{column}", column=column) if taken else dict(name=column)
    return [f"# {_plain(why)}", *(f"{key} = {_value(value)}" for key, value in {**names, **options}.items())]


def _label_lines(p):
    values = p.values
    if p.kind == NUMBER and set(np.unique(values)) <= {0, 1}:
        return ["# 0 and 1; " + f"{values.mean():.2%} are 1", f"column = {_value(p.name)}"]
    if p.kind == NUMBER:
        middle = float(np.median(values))
        why = f"# numbers from {values.min():g} to {values.max():g}: check from which on one is positive"
        return [why, f"column = {_value(p.name)}", f"threshold = {_value(middle)}"]
    if p.kind != TEXT or p.distinct != 2:
        raise UserError(f"--label={p.name}: has {p.distinct} different values; a label has two, or is a number")
    counts = sorted(pc.value_counts(values).to_pylist(), key=lambda count: count["counts"])
    why = f"# the rarer of {', '.join(repr(count['values']) for count in counts)}: check that it is the positive one"
    return [_plain(why), f"column = {_value(p.name)}", f"positive = {_value(counts[0]['values'])}"]


def _toml(name, target, draft, form, rows):
    lines = [f"# Inferred from the first {rows:,} rows: a start to be looked through.", f"name = {_value(name)}"]
    if draft.ids:
        lines += ["# kept beside the predictions, not trained on"]
        lines += ["ids = [", *(f"    {_value(column)},  # {_plain(why)}" for column, why in draft.ids), "]"]
    lines += [f"# left out: {_plain(what)}" for what in draft.left_out]
    lines += ["", "[label]", *_label_lines(target), "", "[defaults]", f"dim = {_DIM}"]
    lines += _csv_lines(form)
    for section, features in (("dense", draft.dense), ("sparse", draft.sparse)):
        for feature in features:
            lines += ["", f"[[{section}]]", *feature]
    return "\n".join(lines) + "\n"


def _csv_lines(form):
    default = CsvFormat()
    changed = {
        f.name: getattr(form, f.name)
        for f in dataclasses.fields(form)
        if getattr(form, f.name) != getattr(default, f.name)
    }
    return ["", "[csv]", *(f"{key} = {_value(value)}" for key, value in changed.items())] if changed else []


def _plain(text):
    """Text fit for a comment."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _value(value):
    """-> as TOML."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_value, value))}]"
    # A JSON string is a TOML one, but that TOML wants the delete character escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
