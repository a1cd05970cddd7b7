"""Drafts a feature spec from the data, with a reason for each column."""

import logging
import os
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc

from ctr_trainer.data.conversion import libsvm
from ctr_trainer.data.conversion.draft import Draft, section
from ctr_trainer.data.conversion.measurement import Labels
from ctr_trainer.data.conversion.sample import NUMBER, TEXT, Column, read_sample
from ctr_trainer.data.conversion.seen_format import seen_format
from ctr_trainer.data.source import Input, list_files
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.settings.setting import refused
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import is_url
from ctr_trainer.system.messages.errors import UserError, did_you_mean, listed

_LABEL = re.compile(
    r"((is|was|has|did)_?)?(label|target|y|clicks?|clicked|clk|action|buy|bought|purchased?|convert(ed)?|conversion|"
    r"churn(ed)?|revenue|response|outcome|liked?|install(ed)?|subscribed?)(_(label|flag))?|is_.+"
)
_POSITIVE = {"yes": "no", "true": "false", "y": "n", "t": "f"}
_log = logging.getLogger(__name__)


def infer(
    input: Input,
    output: str | os.PathLike,
    format: str | None = None,
    label: str | None = None,
    max_bad_rows: int = 0,
    encoding: str = "utf-8",
    crosses: int = 0,
) -> FeatureSpec:
    """Drafts a feature spec for a source and writes it to `output`, a TOML file that must not exist.

    Whole numbers become categories, amounts or both, whichever has the lower held-out log loss of the label; see
    `measurement`. Columns that leak the label are left out, with a warning and a comment; see `leakage.evidence`.

    `format` is None to detect it, see `seen_format`. `label` is None for the only column with two values that is named
    like a label. At most `max_bad_rows` unusable rows of text may be left out, and `crosses` crosses of two categories
    are added; see `measurement.crosses`. Raises UserError if the label cannot be found, or if there is no feature.
    """
    if is_url(str(output)):
        raise UserError(f"output {output}: a feature spec is written to a file on a disk; name its path")
    output = LocalPath(output)
    _refuse_existing(output)
    format = format or seen_format(list_files(input)[0].path)
    columns, form = read_sample(input, format, max_bad_rows, encoding)
    target = _label_column(columns, label or (libsvm.LABEL if format in ("libsvm", "libffm") else None))
    options, labels, read = _read_label(target)
    draft = Draft([c.where(target.present) for c in columns.values() if c is not target], labels, crosses)
    if not any(draft.features.values()):
        why = f"; left out: {listed(draft.left_out)}" if draft.left_out else ""
        raise UserError(f"input {input}: apart from the label {target.name!r}, no column can be a feature{why}")
    _log.info("label %r: %s", target.name, read)
    if draft.weak:
        _log.info("columns without influence of their own on the label: %s", listed(draft.weak))
    of_label = section("[label]", f"{read}; {target.missing}", column=target.name, **options)
    text = draft.toml(output.stem, of_label, form, len(target.values))
    _refuse_existing(output)  # Another process may have written it meanwhile.
    output.write_text(text)
    return FeatureSpec.load(output)


def _refuse_existing(output: LocalPath) -> None:
    if os.path.lexists(output):
        raise UserError(f"output {output}: already exists; remove it or choose another file")


def _label_column(columns: Mapping[str, Column], name: str | None) -> Column:
    if name is not None:
        if name in columns:
            return columns[name]
        said = "{label}: no such column; there are {names}{hint}"
        raise refused(said, {"label": name}, names=listed(columns), hint=did_you_mean(name, columns))
    two = [c for c in columns.values() if c.kind in (NUMBER, TEXT) and len(c.distinct) == 2]
    named = [c for c in two if _LABEL.fullmatch(re.sub(r"(?<=[a-z])(?=[A-Z])|\W", "_", c.name).lower())]
    if len(named) == 1:
        return named[0]
    which = "several columns with two values are named like labels: " if named else "none with two values is so named: "
    which += "; ".join(f"{c.name}: {_read_label(c)[2]}" for c in named or two)
    said = "no column is clearly the label: {which}. Name it with {label:name}; the columns are {every}"
    which = which if two else "no column has two values"
    raise refused(said, {"label": ""}, which=which, every=listed(columns))


def _read_label(c: Column) -> tuple[dict[str, Any], Labels, str]:
    """Returns (the options of the spec, the labels of the values, how the column is read)."""
    distinct = sorted(c.distinct.to_pylist())
    if c.kind == NUMBER:
        is_two, numbers = len(distinct) == 2, c.numbers[c.present]
        if {*distinct} <= {0, 1}:
            return {}, numbers == 1, f"0 and 1; {numbers.mean():.2%} are 1"
        least = distinct[1] if is_two else float(np.median(numbers))
        said = f"{distinct[0]:g} and {least:g}" if is_two else f"from {distinct[0]:g} to {distinct[-1]:g}: check this"
        labels = numbers >= least
        return {"threshold": least}, labels, f"at least {least:g} is positive, of {said}; {labels.mean():.2%} are"
    if c.kind != TEXT or len(distinct) != 2:
        said = "{label}: the column has {distinct} different values; expected two, or numbers"
        raise refused(said, {"label": c.name}, distinct=len(distinct))
    counts = sorted(pc.value_counts(c.values.drop_null()).to_pylist(), key=lambda count: count["counts"])
    rarer, other = (count["values"] for count in counts)
    positive, negative = (other, rarer) if _POSITIVE.get(other.lower()) == rarer.lower() else (rarer, other)
    check = "" if positive.lower() in _POSITIVE else ", the rarer value: check this"
    labels = pc.equal(c.values.drop_null(), positive).to_numpy(zero_copy_only=False)
    read = f"{positive!r} is positive and {negative!r} is not{check}; {labels.mean():.2%} are positive"
    return {"positive": positive}, labels, read
