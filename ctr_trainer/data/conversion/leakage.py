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
from ctr_trainer.data.conversion.synthetic import auc
from ctr_trainer.data.source import Source
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
_STATES = 50  # With more numbers than this, a column has amounts. A capital gain of 15,024 has one label in Adult.
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

    A feature leaks the label if nearly all rows of a group have the same label, or if the AUC of the feature alone is
    above 0.99. The groups are the rows with a value, the rows without one, the rows with another value than the most
    frequent one, and the rows of each value. A category's score is the mean label of its rows. Scores are computed on
    one half of the rows and evaluated on the other half, so values that occur only once have no effect.

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
            has_weights = isinstance(feature, SparseFeature) and feature.weight_separator is not None
            if why := _why(values, missing, labels, has_weights):
                leaks.append(Leak(feature.name, feature.column, why + of))
    return leaks


def warn_of_leaks(data: Source) -> None:
    """Logs a warning for each feature of a source that leaks the label. Samples row groups from the whole data."""
    with contextlib.closing(data):
        groups = len(data.group_rows)
        wanted = min(groups, -(-ROWS * groups // max(sum(data.group_rows), 1)))
        chosen = [number * groups // wanted for number in range(wanted)]
        leaks = find_leaks(map(data.read, chosen), data.spec)
    for leak in leaks:
        _log.warning(
            "%s: %s. If its value is known only after the label, remove feature %r from the feature spec, because a "
            "model with this feature is useless in serving; if it is another outcome, it can be a second label",
            *(data.name, leak, leak.feature),
        )


def _first(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    rows = 0
    for table in tables:
        yield table
        rows += len(table)
        if rows >= ROWS:
            return


def _why(column: pa.ChunkedArray, missing: int, labels: npt.NDArray[np.bool_], has_weights: bool) -> str:
    """Returns the evidence that an encoded column leaks the labels, or "". Keys of missing values: 0 and `missing`.

    The values of lists with weights are not examined: the only column of libsvm text has all features of an example.
    """
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
    if is_list and has_weights:
        return ""
    if is_list:
        owner = pc.list_parent_indices(column.combine_chunks()).to_numpy()
        found, codes = np.unique(pc.list_flatten(column).to_numpy(), return_inverse=True)
        pairs = np.unique(codes * len(labels) + owner)  # A value that a list repeats counts once.
        return _of_values(found, pairs // len(labels), labels[pairs % len(labels)], labels)
    best = _auc(_out_of_fold(_codes(values, present), labels), labels)
    if values.dtype.kind == "f":
        alone = _auc(values[present], labels[present])
        best = max(best, alone, 1 - alone)
    if best > _AUC:
        return f"alone has an AUC of {best:.4f}"
    found, codes, counts = np.unique(values[present], return_inverse=True, return_counts=True)
    amounts = values.dtype.kind == "f" and len(found) > _STATES
    if not amounts and (said := _of_values(found, codes, labels[present], labels)):
        return said
    other = present & (values != found[counts.argmax()]) if len(found) else ~present
    said = _pure(other, labels)
    return f"has another value than its most frequent one {said}" if said else ""


def _of_values(
    found: np.ndarray, codes: npt.NDArray[np.int64], of_codes: npt.NDArray[np.bool_], labels: npt.NDArray[np.bool_]
) -> str:
    """Describes the most frequent value of a feature that nearly always goes with one label; "" if there is none.

    A value must differ from all other values: at 17 nobody has an income above 50,000 in Adult, but at 18 or 19 hardly
    anybody has one, either. Therefore the chance of a pure value is computed with the purest of the other values.

    Args:
      found: the distinct values; `codes` has the index of the value, and `of_codes` the label, of each occurrence.
    """
    counts = np.bincount(codes, minlength=len(found))
    positive = np.bincount(codes, of_codes, minlength=len(found))
    for right, expected, name in ((positive, labels.mean(), 1), (counts - positive, 1 - labels.mean(), 0)):
        shares, enough = right / np.maximum(counts, 1), counts >= _FEWEST
        pure = enough & (shares >= 1 - (1 - _PURE) * (1 - expected))
        likely = max(expected, shares[enough & ~pure].max(initial=0))
        pure &= right >= _SHARE * expected * len(labels)
        if not 0 < likely < 1 or not pure.any():
            continue
        at = int(np.argmax(np.where(pure, counts, 0)))
        if counts[at] * np.log(likely) < np.log(_CHANCE / len(found)):
            value = f"the value {found[at]:g}" if found.dtype.kind == "f" else f"a value ({len(found):,} are distinct)"
            share = f"{int(right[at]):,} of {counts[at]:,} rows; {expected:.2%} of all rows are"
            return f"has {value} that goes only with the label {name} ({share})"
    return ""


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
