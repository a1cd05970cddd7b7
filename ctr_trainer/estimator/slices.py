"""The metrics of an evaluation by the value of one column, in memory that does not grow with the data."""

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa

from ctr_trainer.data.batch import Batch
from ctr_trainer.data.bins import Bins, values_of
from ctr_trainer.data.blocks import ID_PREFIX
from ctr_trainer.data.source import ComputedSource, Source
from ctr_trainer.features.columns import DenseFeature
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.models.metrics.auc import copc, roc_auc, sigmoid
from ctr_trainer.models.metrics.click_metrics import metric_name
from ctr_trainer.models.metrics.evaluation_metrics import normalized_entropy
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError, did_you_mean, listed

_SLICE = "(slice)"  # The id column of the number of each row's slice.
_SAMPLE = 200_000  # Rows in which the most frequent values, or the quantiles, are found.
_VALUES, _RANGES = 500, 10
_SHOWN, _LEAST = 10, 100  # Fewer examples say little about which values are the worst.
_BINS, _MOST = 4096, 12.0  # The AUC of a slice is computed from 4,096 scores, between the logits -12 and 12.


class Slices:
    """The metrics of the rows of each of the `Bins` of a column, which are found in a sample of a source.

    `by` names an id column, a dense or single-valued feature, or its column; otherwise UserError is raised. The rows of
    the attribute `source`, which are to be evaluated, have the number of their slice. `results` is a collective.
    """

    def __init__(self, source: Source, by: str) -> None:
        self._column, self._encoded = by, _encoded(source.spec, by)
        is_key = self._encoded in source.spec.sources and not number_of(source.spec, by)
        column = values_of(source.sample(_SAMPLE), source.spec, self._encoded)
        self._bins = Bins(column, _VALUES, _RANGES, prefix="key " if is_key else "")
        self._sums: dict[str, np.ndarray] = {}  # By label: float64[slices, 5], and the scores of both classes.
        self._scores: dict[str, np.ndarray] = {}
        spec = dataclasses.replace(source.spec, ids=(*source.spec.ids, _SLICE))
        self.source = ComputedSource(source, spec, source.group_rows, self._numbered)

    def _numbered(self, source: Source, group: int) -> pa.Table:
        """Returns a row group with the number of the slice of each row."""
        table = source.read(group)
        numbers = self._bins.numbers(values_of(table, source.spec, self._encoded))
        return table.append_column(ID_PREFIX + _SLICE, pa.array(numbers))

    def update(self, batch: Batch, label: str, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        """Adds the examples of a batch of `source`, float32[B]; examples of weight 0 do not count."""
        slices, count, predicted = batch.ids[_SLICE], len(self._bins.names), sigmoid(logits)
        sums = self._sums.setdefault(label, np.zeros((count, 5)))
        losses = np.logaddexp(0.0, logits, dtype=np.float64) - labels * logits
        for at, values in enumerate((np.ones_like(predicted), labels, predicted, losses)):
            sums[:, at] += np.bincount(slices, values * weights, count)
        sums[:, 4] += np.bincount(slices, weights != 0, count)
        bins = np.nan_to_num((logits + _MOST) * (_BINS / (2 * _MOST))).clip(0, _BINS - 1).astype(np.int64)
        scores = self._scores.setdefault(label, np.zeros((2, count, _BINS)))
        np.add.at(scores, ((labels > 0.5).astype(np.int64), slices, bins), weights)

    def results(self) -> dict[str, dict[str, Any]]:
        """Returns for each label the `largest` values, or all ranges, and the `worst` by normalized entropy."""
        found = {}
        for label in self._sums:
            sums = distributed.all_sum(self._sums[label], metric_name("slices", label))
            scores = distributed.all_sum(self._scores[label], metric_name("slice_scores", label))
            rows = [self._row(at, sums[at], scores[:, at]) for at in np.flatnonzero(sums[:, 4]).tolist()]
            worst: list[dict[str, Any]] = []
            if len(rows) > _SHOWN and not self._bins.ordered:
                worst = [row for row in rows if row["examples"] >= _LEAST and row["normalized_entropy"] > 0]
                worst = sorted(worst, key=lambda row: -row["normalized_entropy"])[:_SHOWN]
            if not self._bins.ordered:
                rows = sorted(rows, key=lambda row: -row["examples"])[:_SHOWN]
            found[metric_name("by", label)] = {"column": self._column, "largest": rows, "worst": worst}
        return found

    def _row(self, at: int, sums: np.ndarray, scores: np.ndarray) -> dict[str, Any]:
        weight, clicks, predicted, loss, examples = sums.tolist()
        logloss = loss / weight if weight else float("nan")
        return {
            "value": self._bins.names[at],
            "examples": int(examples),
            "auc": roc_auc(*scores) if np.isfinite(loss) else float("nan"),
            "logloss": logloss,
            "copc": copc(clicks, predicted),
            "normalized_entropy": normalized_entropy(logloss, clicks / weight if weight else 0.0),
        }


def number_of(spec: FeatureSpec, by: str) -> str | None:
    """Returns the feature whose encoded values are the numbers of a feature or column; None if there are none."""
    numbers = [f for f in spec.features if isinstance(f, DenseFeature) or f.is_bucketised]
    return next((f.name for f in numbers if by in (f.name, f.column)), None)


def _encoded(spec: FeatureSpec, by: str) -> str:
    """Returns the column of the encoded table."""
    if number := number_of(spec, by):
        return number
    single = [f for f in spec.sparse if f.combiner is None]
    for feature in (f for f in single if by in (f.name, f.column)):
        return ID_PREFIX + feature.column if feature.column in spec.ids else feature.name
    if by not in spec.ids:
        offered = [*spec.ids, *(f.name for f in spec.dense), *(f.name for f in single)]
        raise UserError(
            f"no column {by!r} to evaluate by: expected an id column, or a dense or single-valued feature, or any "
            f"column of raw files; there are {listed(offered)}{did_you_mean(by, offered)}"
        )
    return ID_PREFIX + by
