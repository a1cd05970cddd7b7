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
from ctr_trainer.models.metrics.score_sums import ScoreSums, group
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError, did_you_mean, listed

_SLICE = "(slice)"  # The id column of the number of each row's slice.
_SAMPLE = 200_000  # Rows in which the most frequent values, or the quantiles, are found.
_VALUES, _RANGES = 500, 10
_SHOWN, _LEAST = 10, 100  # Fewer examples say little about which values are the worst.
# The AUC of a slice is exact up to 2,048 distinct scores, otherwise within 6.5e-4, see `ScoreSums`. More than four
# ranks send fewer scores each, since each slice of each rank is sent to all.
_SCORES = 2048
_WAITING = 1 << 16  # Examples that are sorted by slice together.


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
        # By label: float64[slices, 5], the scores by the number of their slice, and examples to add to these scores.
        self._sums: dict[str, np.ndarray] = {}
        self._scores: dict[str, dict[int, ScoreSums]] = {}
        self._waiting: dict[str, list[tuple[np.ndarray, ...]]] = {}
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
        waiting = self._waiting.setdefault(label, [])
        waiting.append((slices, logits, labels, weights))
        if sum(len(each[0]) for each in waiting) >= _WAITING:
            self._sort(label)

    def _sort(self, label: str) -> None:
        """Adds the waiting examples to the scores of their slices."""
        slices, *examples = map(np.concatenate, zip(*self._waiting.pop(label, ()), strict=True))
        scores, order = self._scores.setdefault(label, {}), np.argsort(slices, kind="stable")
        numbers, begins = np.unique(slices[order], return_index=True)
        for number, own in zip(numbers.tolist(), np.split(order, begins[1:]), strict=True):
            if number not in scores:
                scores[number] = ScoreSums(_SCORES)
            scores[number].update(*(each[own] for each in examples))

    def results(self) -> dict[str, dict[str, Any]]:
        """Returns for each label the `largest` values, or all ranges, and the `worst` by normalized entropy."""
        found = {}
        for label in self._sums:
            sums = distributed.all_sum(self._sums[label], metric_name("slices", label))
            aucs = self._aucs(label)
            rows = [self._row(at, sums[at], aucs[at]) for at in np.flatnonzero(sums[:, 4]).tolist()]
            worst: list[dict[str, Any]] = []
            if len(rows) > _SHOWN and not self._bins.ordered:
                worst = [row for row in rows if row["examples"] >= _LEAST and row["normalized_entropy"] > 0]
                worst = sorted(worst, key=lambda row: -row["normalized_entropy"])[:_SHOWN]
            if not self._bins.ordered:
                rows = sorted(rows, key=lambda row: -row["examples"])[:_SHOWN]
            found[metric_name("by", label)] = {"column": self._column, "largest": rows, "worst": worst}
        return found

    def _aucs(self, label: str) -> dict[int, float]:
        """Returns the AUC of each slice that has examples. A collective."""
        if label in self._waiting:
            self._sort(label)
        most = max(4 * _SCORES // distributed.size(), 128)
        own = [np.insert(group(each.sums, most), 0, at, axis=1) for at, each in self._scores[label].items()]
        gathered = distributed.all_gather(np.concatenate(own).reshape(-1), metric_name("slice_scores", label))
        gathered, aucs = gathered.reshape(-1, 5), {}
        for at in np.unique(gathered[:, 0]).tolist():
            sums, scores = gathered[gathered[:, 0] == at, 1:], ScoreSums(_SCORES)
            scores.add(sums[np.argsort(sums[:, 0])])
            aucs[int(at)] = roc_auc(*scores.sums.T[1:3])
        return aucs

    def _row(self, at: int, sums: np.ndarray, auc: float) -> dict[str, Any]:
        weight, clicks, predicted, loss, examples = sums.tolist()
        logloss = loss / weight if weight else float("nan")
        return {
            "value": self._bins.names[at],
            "examples": int(examples),
            "auc": auc,
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
