"""A converted data set: Parquet files, their description in `_dataset.json`, and the split into parts."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

_FORM = (
    "'none', 'random:0.8,0.1,0.1' or 'time:0.8,0.1,0.1:timestamp' (two fractions: train,test; three: train,valid,test)"
)
FILE = "_dataset.json"
_VERSION = 1
_HINT = "; run `convert` first, or set feature_spec to read Parquet, TFRecords or CSV (in Python: ctr_trainer.train)"


@dataclasses.dataclass(frozen=True)
class Split:
    """How to split a data set.

    Attributes:
      kind: `random` or `time`.
      fractions: share of each part; the shares add up to 1.
      column: column that contains the time; None for `random`.
    """

    kind: str
    fractions: tuple[float, ...]
    column: str | None = None

    @staticmethod
    def parse(text: str | None) -> Split | None:
        """Parses a split such as `"random:0.8,0.1,0.1"`. Returns None for `"none"`, `""` and None.

        Raises:
          UserError: the split is malformed.
        """
        if text in (None, "", "none"):
            return None
        kind, _, rest = text.partition(":")
        fractions, _, column = rest.partition(":")
        try:
            shares = tuple(float(f) for f in fractions.split(","))
        except ValueError:
            shares = ()
        if kind not in ("random", "time") or len(shares) not in (2, 3) or bool(column) != (kind == "time"):
            raise UserError(f"split {text!r}: expected {_FORM}")
        if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
            raise UserError(f"split {text!r}: the fractions must be positive and add up to 1, as in {_FORM}")
        return Split(kind, shares, column or None)

    @property
    def parts(self) -> tuple[str, ...]:
        return ("train", "test") if len(self.fractions) == 2 else ("train", "valid", "test")

    def assign(self, rows: int, seed: int = 0, times: np.ndarray | None = None) -> np.ndarray:
        """Returns uint8[rows], the index in `parts` of each row's part.

        A random split permutes the rows; a split by time sorts them stably by time. The rows are then divided at the
        positions int(rows * cumulative sum of the fractions).
        """
        if self.kind == "time":
            assert times is not None
            order = np.argsort(times, kind="stable")
        else:
            order = np.random.default_rng(seed).permutation(rows)
        part = np.empty(rows, np.uint8)
        cuts = [int(rows * round(c, 12)) for c in np.cumsum(self.fractions)[:-1]]
        for number, piece in enumerate(np.split(order, cuts)):
            part[piece] = number
        return part


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """The description of a data set, which is stored in `_dataset.json`.

    Attributes:
      path: directory of the data set, or its URL; not stored in the file.
      spec: the FeatureSpec that the data were converted with.
      rows: number of examples.
      bad_rows: number of rows that the conversion left out, over all parts of a split.
      distinct: dict of sparse feature name -> number of distinct keys, without bucketised features; exact below 16,384,
        and estimated with a standard error of 0.8 % beyond that.
      statistics: dict of feature name -> dict. For a dense feature, `mean`, `std`, `min`, `max` and `count` of the
        present values in the training part; for a feature with quantiles, the `boundaries` fitted to these values;
        for a feature of texts, `form`, see `observations.form`, and for a single-valued one `typical`, its most
        frequent text, if it is frequent enough to be shown.
      files: one dict per Parquet file: `name`, `rows`, `row_groups` (the number of rows of each row group) and `bytes`
        (the file size).
      extra: additional figures of the format, such as `oracle_auc` of the synthetic data.
      label_means: dict of label name -> share of the examples whose label is positive; {} if the data have no labels.
    """

    path: str
    spec: FeatureSpec
    rows: int
    bad_rows: int
    distinct: dict[str, int]
    statistics: dict[str, dict[str, float]]
    files: tuple[dict[str, Any], ...]
    extra: dict[str, Any]
    label_means: dict[str, float]

    @property
    def label_mean(self) -> float | None:
        """Share of the examples whose (first) label is positive; None if the data have no labels."""
        return next(iter(self.label_means.values()), None)

    def write(self) -> None:
        """Writes `_dataset.json` atomically. A directory with this file is a finished data set."""
        for each in self.spec.files:
            each.copy_to(path_of(self.path))
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in ("path", "spec")}
        values = {"version": _VERSION, "spec": self.spec.to_dict(), "labelled": self.spec.labelled, **values}
        (path_of(self.path) / FILE).write_json(values)


def open_dataset(path: str | os.PathLike) -> DatasetInfo:
    """Reads the `DatasetInfo` of a directory that `convert` wrote, or of its URL.

    Raises UserError if there is no such directory, its conversion is unfinished, or another version of the package
    wrote it.
    """
    file = path_of(path) / FILE
    if not file.is_file():
        why = "it is a file" if file.parent.exists() else "no such directory"
        why = f"it has no finished conversion (no {FILE})" if file.parent.is_dir() else why
        parts = sorted(p.parent.name for p in file.parent.glob(f"*/{FILE}"))
        hint = f"; it has the parts {', '.join(parts)}: choose one" if parts else _HINT
        raise UserError(f"data set {path}: {why}{hint}")
    try:
        values = file.read_json("convert the data again")
        if values.pop("version") != _VERSION:
            raise UserError(f"{file}: written by another version of ctr_trainer; convert the data again")
        spec = FeatureSpec.from_dict(values.pop("spec"), f"{file}: spec")
        spec = (spec if values.pop("labelled") else spec.without_labels()).in_directory(path_of(path))
        return DatasetInfo(path=str(path), spec=spec, **{**values, "files": tuple(values["files"])})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not the description of a data set ({error}); convert the data again") from error
