"""Finds columns that leak the label (target leakage), such as a column that is filled only after a click."""

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.blocks import label_columns
from ctr_trainer.data.dataset import DatasetInfo
from ctr_trainer.data.source import ConvertedData
from ctr_trainer.data.synthetic import auc
from ctr_trainer.features.columns import DenseFeature, SparseFeature
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec

ROWS = 100_000  # Number of rows to examine: enough to detect a leak, and read in a second.
_AUC = 0.99
_FEWEST = 20  # Groups with fewer rows are not significant.
_CHANCE = 1e-9  # A pure group is significant if it occurs by chance with a lower probability.
_PURE = 0.99
_SHARE = 0.01  # Groups with a smaller share of their label's rows are ignored.
_BINS = 256
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Leak:
    """A feature that leaks a label."""

    feature: str
    column: str
    why: str  # The evidence, worded to complete a sentence about the column.

    def __str__(self) -> str:
        return f"column {self.column!r} {self.why}"


def find_leaks(tables: Iterable[pa.Table], spec: FeatureSpec) -> list[Leak]:
    """Finds the features that leak a label on their own.

    A feature leaks the label if nearly all rows with a value, or nearly all rows without one, have the same label, or
    if the AUC of the feature alone is above 0.99. A category's score is the mean label of its rows. Scores are computed
    on one half of the rows and evaluated on the other half, so values that occur only once have no effect.

    Args:
      tables: encoded tables (see `encode.Encoder`). Tables after the first `ROWS` rows are not read.
    """
    taken = list(_first(tables)) if spec.labelled else []
    if not taken:
        return []
    table = pa.concat_tables(taken)
    leaks = []
    for column, label in label_columns(spec).items():
        labels = table[column].to_numpy() > 0.5
        of = f" for the label {label.name!r}" if spec.other_labels else ""
        features: tuple[DenseFeature | SparseFeature, ...] = (*spec.dense, *spec.sparse)
        for feature in features:
            values, missing = table[feature.name], 0
            if isinstance(feature, SparseFeature) and pa.types.is_int64(values.type):
                missing = keys(feature.slot, pa.array([""]))[0]
            if why := _why(values, missing, labels):
                leaks.append(Leak(feature.name, feature.column, why + of))
    return leaks


def warn_of_leaks(info: DatasetInfo) -> None:
    """Logs a warning for each feature of a data set that leaks the label. Samples row groups from the whole data."""
    with contextlib.closing(ConvertedData(info.path)) as data:
        groups = len(data.group_rows)
        wanted = min(groups, -(-ROWS * groups // max(info.rows, 1)))
        chosen = [number * groups // wanted for number in range(wanted)]
        leaks = find_leaks(map(data.read, chosen), info.spec)
    for leak in leaks:
        _log.warning(
            "%s: %s. If its value is known only after the label, remove feature %r from the feature spec and convert "
            "again, because a model with this feature is useless in serving",
            *(info.path, leak, leak.feature),
        )


def _first(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    rows = 0
    for table in tables:
        yield table
        rows += len(table)
        if rows >= ROWS:
            return


def _why(column: pa.ChunkedArray, missing: int, labels: npt.NDArray[np.bool_]) -> str:
    """Returns the evidence that an encoded column leaks the labels, or "". Keys of missing values: 0 and `missing`."""
    is_list = pa.types.is_list(column.type)
    values = (pc.list_value_length(column) if is_list else column).to_numpy()
    if is_list:
        present = values > 0
    elif values.dtype.kind == "f":
        present = ~np.isnan(values)
    else:
        present = (values != 0) & (values != missing)
    for rows, what in ((present, "is filled"), (~present, "is missing")):
        if said := _pure(rows, labels):
            return f"{what} {said}"
    if is_list:
        return ""
    best = _auc(_out_of_fold(_codes(values, present), labels), labels)
    if values.dtype.kind == "f":
        alone = _auc(values[present], labels[present])
        best = max(best, alone, 1 - alone)
    return f"alone has an AUC of {best:.4f}" if best > _AUC else ""


def _pure(rows: npt.NDArray[np.bool_], labels: npt.NDArray[np.bool_]) -> str:
    """Describes a group of rows if nearly all its labels are equal, unlike the labels of all rows; otherwise ""."""
    count, others = int(rows.sum()), int((~rows).sum())
    if min(count, others) < _FEWEST:
        return ""
    mean, base = float(labels[rows].mean()), float(labels.mean())
    for share, expected, name in ((mean, base, 1), (1 - mean, 1 - base, 0)):
        # If a label is rare overall, nearly every group is nearly pure. It must be much rarer in the group.
        pure = share >= 1 - (1 - _PURE) * (1 - expected)
        if pure and 0 < expected < 1 and count * np.log(expected) < np.log(_CHANCE):
            if count * share >= _SHARE * expected * len(labels):
                return f"only where the label is {name} ({share:.2%} of {count:,} rows; {expected:.2%} of all rows are)"
    return ""


def _codes(values: np.ndarray, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Returns a category per row: its key, or the quantile of its number. Missing values have their own category."""
    if values.dtype.kind == "f":
        found = values[present]
        if not len(found):
            return np.zeros(len(values), np.int64)
        bounds = np.unique(np.quantile(found, np.linspace(0, 1, _BINS + 1)[1:-1]))
        values = np.where(present, np.searchsorted(bounds, np.where(present, values, 0), side="left") + 1, 0)
    return np.unique(values, return_inverse=True)[1]


def _out_of_fold(codes: npt.NDArray[np.int64], labels: npt.NDArray[np.bool_]) -> npt.NDArray[np.float64]:
    """Returns the mean label of each row's category in the other half of the rows, smoothed with the overall mean."""
    scores = np.empty(len(codes))
    fold = np.arange(len(codes)) % 2 == 0
    base = labels.mean()
    for part in (fold, ~fold):
        counts = np.bincount(codes[~part], minlength=codes.max() + 1)
        positive = np.bincount(codes[~part], labels[~part], minlength=codes.max() + 1)
        scores[part] = ((positive + base) / (counts + 1))[codes[part]]
    return scores


def _auc(scores: np.ndarray, labels: npt.NDArray[np.bool_]) -> float:
    """Returns the AUC of the scores, or 0.5 if one of the labels is too rare."""
    positives = int(labels.sum())
    if min(positives, len(labels) - positives) < _FEWEST:
        return 0.5
    return auc(labels, scores)
