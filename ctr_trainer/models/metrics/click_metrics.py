"""The metrics of a click model, and the sums from which a line of the training log is computed."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ctr_trainer.models.metrics.auc import roc_auc, sigmoid
from ctr_trainer.models.metrics.score_sums import SCORES, ScoreSums, group

# At least so many examples are added at once. If batches of 1,024 are added one by one, each takes 0.1 ms instead of
# 0.03, because the code of the metrics has left the core's cache by the next batch.
_EXAMPLES = 1 << 15
LINE_SCORES = 1 << 13  # Of one line of the log; the lines of all workers are gathered.
LINES_SCORES = 1 << 15
_MEANS = ("xentropy_mean", "accuracy", "prob_mean", "real_mean")


class Mean:
    """The weighted mean sum(weight * value) / sum(weight).

    `state` is float64[2], the sum of weighted values and the sum of weights; the states of two workers add up.
    """

    def __init__(self) -> None:
        self.state = np.zeros(2)

    def update(self, values: np.ndarray, weights: np.ndarray) -> None:
        """Adds float32[B] values with their weights."""
        # Not `np.dot`: for this many values OpenBLAS starts threads, which spin on the cores that the workers need.
        self.state += (np.multiply(values, weights, dtype=np.float64).sum(), weights.sum(dtype=np.float64))

    def result(self) -> float:
        """Computes the mean; NaN if nothing was added."""
        total, weight = self.state
        return float(total / weight) if weight else float("nan")


class ClickMetrics:
    """AUC, cross entropy, accuracy, mean prediction and mean label of one label's examples.

    At most `limit` scores are kept, see `ScoreSums`. The vector `sums` has the length SUMS.
    """

    SUMS = 3 * LINE_SCORES + 2 * len(_MEANS)

    def __init__(self, limit: int = SCORES) -> None:
        self._scores, self._means = ScoreSums(limit), {name: Mean() for name in _MEANS}
        self._waiting: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self._count = 0

    @property
    def scores(self) -> ScoreSums:
        """The examples by score."""
        self._add_waiting()
        return self._scores

    @property
    def means(self) -> dict[str, Mean]:
        """A dict of name in the log and the summaries -> mean. Their states add up over workers."""
        self._add_waiting()
        return self._means

    def update(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        """Adds examples. Do not write to the arrays afterwards: they are kept until several batches are added at once.

        The arrays are float32[B]; examples of weight 0 do not count.
        """
        self._waiting.append((logits, labels, weights))
        self._count += len(logits)
        if self._count >= max(_EXAMPLES, len(self._scores.sums)):  # Each merge copies all sums.
            self._add_waiting()

    def results(self) -> dict[str, float]:
        """Computes the metrics by name."""
        auc = roc_auc(*self.scores.sums.T[1:3])
        return {"auc": auc, **{name: mean.result() for name, mean in self.means.items()}}

    def sums(self) -> np.ndarray:
        """Packs the metrics for `add_sums`: float64[SUMS], 192 KB, `LINE_SCORES` scores; a label counts as 0 or 1."""
        scores = np.zeros((LINE_SCORES, 3))
        own = group(self.scores.sums, LINE_SCORES)[:, :3]
        scores[: len(own)] = own
        return np.concatenate([scores.reshape(-1), *(mean.state for mean in self.means.values())])

    def add_sums(self, sums: np.ndarray) -> None:
        """Adds the `sums` of other examples."""
        scores, *means = np.split(sums, 3 * LINE_SCORES + 2 * np.arange(len(_MEANS)))
        rows = scores.reshape(-1, 3)
        self.scores.add(rows[rows[:, 1:].any(axis=1)][:, [0, 1, 2, 2]])
        for mean, state in zip(self.means.values(), means, strict=True):
            mean.state += state

    def _add_waiting(self) -> None:
        if not self._waiting:
            return
        logits, labels, weights = (np.concatenate(each, dtype=np.float32) for each in zip(*self._waiting, strict=True))
        self._waiting.clear()
        self._count = 0
        self._scores.update(logits, labels, weights)
        # float64, because the log shows eight digits.
        entropy = np.logaddexp(0.0, logits, dtype=np.float64) - labels * logits
        right = np.where(np.isnan(logits), np.nan, (logits > 0) == (labels > 0.5))  # The probability is above 0.5.
        values = (entropy, right, sigmoid(logits), labels)
        for mean, each in zip(self._means.values(), values, strict=True):
            mean.update(each, weights)


def metric_name(name: str, label: str) -> str:
    """Returns the name of a label's metric: `auc/click` for the label `click`; `auc` for "", a model's only label."""
    return f"{name}/{label}" if label else name


@dataclasses.dataclass(frozen=True)
class WorkerFigures:
    """The figures of one worker at a step. A figure that the worker does not have is None.

    Attributes:
      lr: learning rate of the dense variables.
      sync_ms: milliseconds of the last sync of the rows; None if another worker of the host makes the syncs.
      sync_wait_ms: milliseconds for which the worker's steps waited for that sync.
      hits, misses: number of keys looked up so far, see `WorkerRows`; they add up over workers.
      steps_per_sec, examples_per_sec: rates of this worker since the previous line.
    """

    lr: float | None = None
    sync_ms: float | None = None
    sync_wait_ms: float | None = None
    hits: int = 0
    misses: int = 0
    steps_per_sec: float | None = None
    examples_per_sec: float | None = None


@dataclasses.dataclass(frozen=True)
class Line:
    """The figures of a line of the training log.

    Attributes:
      step: global step of the line.
      of: workers that the line describes, such as `2 workers` or `rank 1`; "" for a single worker.
      values: dict of name -> figure: the metrics of each label, and `loss`, the loss of the last step only.
      steps_per_sec: steps per second, the mean over the workers.
      examples_per_sec: examples per second, the sum over the workers; None for a model without labels, whose number of
        examples is not known.
      own: `WorkerFigures` of this worker only, at that step.
      cache_hit_rate: share of the keys looked up so far by these workers that needed no call to the service; None
        without a service.
      workers: number of workers that the line describes.
    """

    step: int
    of: str
    values: dict
    steps_per_sec: float
    examples_per_sec: float | None
    own: WorkerFigures = WorkerFigures()
    cache_hit_rate: float | None = None
    workers: int = 1

    def figures(self) -> dict[str, float]:
        """Returns a dict of the figures of the line that are written to files."""
        figures = {name: getattr(self.own, name) for name in ("lr", "sync_ms", "sync_wait_ms")}
        figures |= {"cache_hit_rate": self.cache_hit_rate, **self.values, "examples_per_sec": self.examples_per_sec}
        return {name: value for name, value in figures.items() if value is not None}


def pack(metrics: dict[str, ClickMetrics], loss: float, weight: float, own: WorkerFigures) -> np.ndarray:
    """Packs a worker's figures into a vector for `unpack`, whose length depends on the labels only.

    Args:
      metrics: dict of label -> its `ClickMetrics`.
      loss: loss of the last step on this worker, a mean over examples.
      weight: sum of the weights of these examples.
    """
    rest = [loss * weight, weight, own.steps_per_sec, own.examples_per_sec, own.hits, own.misses]
    return np.concatenate([*(each.sums() for each in metrics.values()), rest])


def unpack(
    vectors: np.ndarray, labels: Sequence[str], step: int, of: str, own: WorkerFigures
) -> tuple[Line, dict[str, ClickMetrics]]:
    """Creates the `Line` of several workers, and the `ClickMetrics` of each label, from the workers' vectors of `pack`.

    Args:
      vectors: float64[workers, n].
      labels: in the order of `pack`.
    """
    metrics = {label: ClickMetrics() for label in labels}
    *parts, rest = np.split(vectors, ClickMetrics.SUMS * np.arange(1, len(labels) + 1), axis=1)
    values: dict[str, float] = {}
    for (label, each), part in zip(metrics.items(), parts, strict=True):
        for sums in part:
            each.add_sums(sums)
        values |= {metric_name(name, label): value for name, value in each.results().items()}
    loss, weight, steps_per_sec, examples_per_sec, hits, misses = rest.sum(axis=0).tolist()
    values["loss"] = loss / weight if weight else float("nan")
    line = Line(
        step=step,
        of=of,
        values=values,
        steps_per_sec=steps_per_sec / len(vectors),
        examples_per_sec=examples_per_sec if labels else None,
        own=own,
        cache_hit_rate=hits / (hits + misses) if hits + misses else None,
        workers=len(vectors),
    )
    return line, metrics
