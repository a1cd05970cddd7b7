"""Drafts a feature spec from the data, with a reason for each column."""

import contextlib
import functools
import logging
import os
import pathlib
from collections.abc import Callable

import numpy as np
import pyarrow.compute as pc

from ctr_trainer.data.conversion import profile
from ctr_trainer.data.conversion.convert import SOURCES, bad_rows_of
from ctr_trainer.data.conversion.draft import Draft, place_all
from ctr_trainer.data.conversion.encoded_blocks import encoded
from ctr_trainer.data.conversion.leakage import find_leaks
from ctr_trainer.data.conversion.profile import NUMBER, TEXT, Profile, sample_csv, sample_parquet, sample_tfrecord
from ctr_trainer.data.conversion.seen_format import seen_format
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.source import Input, list_files
from ctr_trainer.features.columns import CsvFormat
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.settings.setting import refused
from ctr_trainer.system.messages.errors import UserError, did_you_mean, listed

LABEL_NAMES = (
    "label", "click", "clicked", "clicks", "is_click", "is_clicked", "target", "y",
    "converted", "conversion", "purchase",
)  # fmt: skip
_ROWS = 200_000
_log = logging.getLogger(__name__)


def infer(
    input: Input,
    output: str | os.PathLike,
    format: str | None = None,
    label: str | None = None,
    max_bad_rows: int = 0,
    progress: bool = True,
    encoding: str = "utf-8",
) -> FeatureSpec:
    """Drafts a feature spec for a source and writes it to a file.

    Columns that leak the label are left out, with a warning and a comment; see `leakage.find_leaks`.

    Args:
      input: a path or pattern, or a list of them; for Parquet also a directory.
      output: path of the TOML file to write; it must not exist.
      format: `csv`, `parquet`, `tfrecord`, `libsvm` or `libffm`; None detects it, see `seen_format`.
      label: column of the label; None selects a 0/1 column with a usual name, or the only 0/1 column.
      max_bad_rows: number of unusable rows of text that may be left out.
      encoding: of the files of format `csv`; see `CsvFormat`.

    Raises:
      UserError: the label cannot be found, there is no feature, or `output` exists.
    """
    output = pathlib.Path(output)
    if output.exists():
        raise UserError(f"output {output}: already exists; remove it or choose another file")
    format = format or seen_format(list_files(input)[0].path)
    if format in ("libsvm", "libffm"):
        if label:
            raise refused(
                "{label}: the label of format {format} is the first number of each line",
                {"label": label},
                format=format,
            )
        make_draft, form, rows = _of_lines(input, format, max_bad_rows)
    else:
        make_draft, form, rows = _of_columns(input, format, label, max_bad_rows, progress, encoding)
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


def _leaks(input: Input, format: str, spec: FeatureSpec, max_bad_rows: int) -> dict[str, str]:
    """Returns a dict of leaking column -> reason, and logs a warning for each column."""
    bad_rows = bad_rows_of(format, max_bad_rows)
    read = functools.partial(SOURCES[format], list_files(input), spec)
    with contextlib.closing(encoded(read, spec, bad_rows, Observations(spec), measured=False)) as tables:
        leaks = find_leaks((table for table, _ in tables), spec)
    for leak in leaks:
        _log.warning(
            "%s: the column leaks the label, so the feature spec leaves it out; see the comment in the spec", leak
        )
    cure = "Add it only if it is known before the label, or as a second label"
    return {leak.column: f"{leak.why}. {cure}" for leak in leaks}


def _of_columns(
    input: Input, format: str, label: str | None, max_bad_rows: int, progress: bool, encoding: str
) -> tuple[Callable[[dict[str, str]], Draft], CsvFormat, int]:
    """Profiles files with columns. Returns (f(leaks by column) that makes the Draft, CsvFormat, number of rows)."""
    if format == "csv":
        profiles, form, rows = sample_csv(input, _ROWS, max_bad_rows, encoding, progress)
    elif format == "tfrecord":
        (profiles, rows), form = sample_tfrecord(input, _ROWS, max_bad_rows, progress), CsvFormat()
    else:
        (profiles, rows), form = sample_parquet(input, _ROWS, progress), CsvFormat()
    target = _label_column(profiles, label)

    def make_draft(leaks: dict[str, str]) -> Draft:
        draft = Draft(tuple(p.name for p in profiles))
        _set_label(target, draft)
        for p in profiles:
            if p.name in leaks:
                draft.leave_out(p.name, leaks[p.name])
        place_all([p for p in profiles if p is not target and p.name not in leaks], draft)
        if not draft.has_features:
            raise UserError(
                f"input {input}: apart from the label {target.name!r}"
                + (f" and columns that leak it ({listed(leaks)})" if leaks else "")
                + ", it has no column that can be a feature"
            )
        return draft

    return make_draft, form, rows


def _of_lines(input: Input, format: str, max_bad_rows: int) -> tuple[Callable[[dict[str, str]], Draft], CsvFormat, int]:
    """Profiles files whose lines consist of a label and weighted indices. Returns the same as `_of_columns`."""
    label, fields, rows = profile.sample_fields(input, format, _ROWS, max_bad_rows)

    def make_draft(leaks: dict[str, str]) -> Draft:
        draft = Draft((label.name, *(field.column for field in fields)))
        _set_label(label, draft)
        for field in fields:
            if field.column in leaks:
                draft.leave_out(field.column, leaks[field.column])
            elif field.most == 1 and field.ones and format == "libffm":
                draft.add_sparse(field.column, "one index per line, with the value 1")
            else:
                why = f"up to {field.most:,} indices per line, whose values are their weights"
                draft.add_sparse(field.column, why, combiner="sum", weight_separator=":")
        if not draft.has_features:
            raise UserError(f"input {input}: its lines have labels but no features, except for features that leak them")
        return draft

    return make_draft, CsvFormat(), rows


def _label_column(profiles: list[Profile], name: str | None) -> Profile:
    if name:
        found = [p for p in profiles if p.name == name]
        if not found:
            names = [p.name for p in profiles]
            hint = did_you_mean(name, names)
            raise refused(
                "{label}: no such column; there are {names}{hint}", {"label": name}, names=listed(names), hint=hint
            )
        return found[0]
    binary = [p for p in profiles if p.kind == NUMBER and set(np.unique(p.values)) == {0, 1}]
    named = sorted(
        (p for p in binary if p.name.lower() in LABEL_NAMES), key=lambda p: LABEL_NAMES.index(p.name.lower())
    )
    if named or len(binary) == 1:
        return (named or binary)[0]
    which = f"the columns of 0 and 1 are {listed(p.name for p in binary)}" if binary else "no column has 0 and 1 only"
    every = listed(p.name for p in profiles)
    raise refused(
        "no column is clearly the label: {which}. Name it with {label:name}; the columns are {every}",
        {"label": ""},
        which=which,
        every=every,
    )


def _set_label(p: Profile, draft: Draft) -> None:
    values = p.values
    if p.kind == NUMBER and set(np.unique(values)) == {-1, 1}:
        draft.set_label(p.name, f"-1 and 1; {(values == 1).mean():.2%} are 1", threshold=0.0)
    elif p.kind == NUMBER and set(np.unique(values)) <= {0, 1}:
        draft.set_label(p.name, f"0 and 1; {values.mean():.2%} are 1")
    elif p.kind == NUMBER:
        why = f"numbers from {values.min():g} to {values.max():g}: check the least positive one"
        draft.set_label(p.name, why, threshold=float(np.median(values)))
    elif p.kind == TEXT and p.distinct == 2:
        counts = sorted(pc.value_counts(values).to_pylist(), key=lambda count: count["counts"])
        both = ", ".join(repr(count["values"]) for count in counts)
        why = f"the rarer value of {both}: check that it is the positive one"
        draft.set_label(p.name, why, positive=counts[0]["values"])
    else:
        raise refused(
            "{label}: the column has {distinct} different values; expected two, or numbers",
            {"label": p.name},
            distinct=p.distinct,
        )
