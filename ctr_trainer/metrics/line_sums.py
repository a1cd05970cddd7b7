"""The sums behind a line of the training's log: one vector, so that those of several workers add up."""

import dataclasses

import numpy as np

from ctr_trainer.metrics.click_metrics import ClickMetrics, metric_name
from ctr_trainer.metrics.mean import Mean
from ctr_trainer.metrics.worker_figures import WorkerFigures

_PACE = 5  # steps/s, examples/s, workers, hits, misses


@dataclasses.dataclass(frozen=True)
class Line:
    """What a line says.

    Attributes:
      step: the global step that it is of.
      of: whose it is, as `2 workers` or `rank 1`; "" of a lone worker.
      values: by name, the metrics of each label and `loss`, of the last step alone.
      steps_per_sec: of a worker, on average.
      examples_per_sec: of all of these workers together; None of a model without labels, whose examples are not known.
      own: `WorkerFigures` of this worker alone, as of that step.
      cache_hit_rate: of the keys that these workers looked up so far, the share that needed no request to the service;
        None without one.
    """

    step: int
    of: str
    values: dict
    steps_per_sec: float
    examples_per_sec: float | None
    own: WorkerFigures = WorkerFigures()
    cache_hit_rate: float | None = None

    def figures(self):
        """-> dict of name -> float, all that files keep of it."""
        figures = {name: getattr(self.own, name) for name in ("lr", "sync_ms", "sync_wait_ms")}
        figures |= {"cache_hit_rate": self.cache_hit_rate, **self.values, "examples_per_sec": self.examples_per_sec}
        return {name: value for name, value in figures.items() if value is not None}


def pack(metrics, loss, weight, steps_per_sec, examples_per_sec, own):
    """-> float64[n], which adds over workers; n is the same for the same labels.

    Args:
      metrics: by label, its `ClickMetrics`.
      loss: of the last step on this worker, its mean over examples of the sum of weights `weight`.
      steps_per_sec, examples_per_sec: of this worker.
      own: its `WorkerFigures`.
    """
    rest = [loss * weight, weight, steps_per_sec, examples_per_sec, 1.0, own.hits, own.misses]
    return np.concatenate([*(each.sums() for each in metrics.values()), rest])


def unpack(sums, labels, step, of, own):
    """-> the `Line` of a sum of packed vectors.

    Args:
      labels: their names, in the order of `pack`.
      step, of, own: see `Line`.
    """
    *parts, rest = np.split(sums, ClickMetrics.SUMS * np.arange(1, len(labels) + 1))
    values = {}
    for label, part in zip(labels, parts, strict=True):
        values |= {metric_name(name, label): value for name, value in ClickMetrics.results_of(part).items()}
    loss = Mean()
    loss.state[:], (steps_per_sec, examples_per_sec, workers, hits, misses) = np.split(rest, [-_PACE])
    values["loss"] = loss.result()
    rate = hits / (hits + misses) if hits + misses else None
    return Line(step, of, values, steps_per_sec / workers, examples_per_sec if labels else None, own, rate)
