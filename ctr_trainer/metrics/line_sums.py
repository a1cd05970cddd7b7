"""The sums behind a line of the training's log: one vector, so that those of several workers add up."""

import dataclasses

import numpy as np

from ctr_trainer.metrics.click_metrics import ClickMetrics, metric_name
from ctr_trainer.metrics.mean import Mean

_PACE = 3  # steps/s, examples/s, workers


@dataclasses.dataclass(frozen=True)
class Line:
    """What a line says.

    Attributes:
      step: the global step that it is of.
      of: whose it is, as `2 workers` or `rank 1`; "" of a lone worker.
      values: by name, the metrics of each label and `loss`, of the last step alone.
      steps_per_sec: of a worker, on average.
      examples_per_sec: of all of these workers together; None of a model without labels, whose examples are not known.
      others: by name, figures that are this worker's own, as of that step: `lr`, `sync_ms` and alike.
    """

    step: int
    of: str
    values: dict
    steps_per_sec: float
    examples_per_sec: float | None
    others: dict

    def figures(self):
        """-> dict of name -> float, all that files keep of it."""
        examples = {} if self.examples_per_sec is None else {"examples_per_sec": self.examples_per_sec}
        return {**self.others, **self.values, **examples}


def pack(metrics, loss, weight, steps_per_sec, examples_per_sec):
    """-> float64[n], which adds over workers; n is the same for the same labels.

    Args:
      metrics: by label, its `ClickMetrics`.
      loss: of the last step on this worker, its mean over examples of the sum of weights `weight`.
      steps_per_sec, examples_per_sec: of this worker.
    """
    rest = [loss * weight, weight, steps_per_sec, examples_per_sec, 1.0]
    return np.concatenate([*(each.sums() for each in metrics.values()), rest])


def unpack(sums, labels, step, of, others):
    """-> the `Line` of a sum of packed vectors.

    Args:
      labels: their names, in the order of `pack`.
      step, of, others: see `Line`.
    """
    *parts, rest = np.split(sums, ClickMetrics.SUMS * np.arange(1, len(labels) + 1))
    values = {}
    for label, own in zip(labels, parts, strict=True):
        values |= {metric_name(name, label): value for name, value in ClickMetrics.results_of(own).items()}
    loss = Mean()
    loss.state[:], (steps_per_sec, examples_per_sec, workers) = np.split(rest, [-_PACE])
    values["loss"] = loss.result()
    return Line(step, of, values, steps_per_sec / workers, examples_per_sec if labels else None, others)
