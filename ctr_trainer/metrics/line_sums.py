"""The sums behind a line of the training's log, packed into one vector per worker; the vectors add up."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from ctr_trainer.metrics.auc import COARSE_BINS
from ctr_trainer.metrics.click_metrics import ClickMetrics, Mean, metric_name

_PACE = 5  # steps/s, examples/s, workers, hits, misses


@dataclasses.dataclass(frozen=True)
class WorkerFigures:
    """One worker's own figures at a step; a figure that the worker does not have is None.

    Attributes:
      lr: learning rate of the dense variables.
      sync_ms: duration of the last sync of the rows, in milliseconds; None if another worker of the host makes the
        syncs.
      sync_wait_ms: milliseconds of that sync for which the worker's steps stood still.
      hits, misses: number of keys looked up so far, see `RowTotals`; they add up over workers.
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
    """The figures of a line of the training's log.

    Attributes:
      step: global step of the line.
      of: workers that the line is about, as `2 workers` or `rank 1`; "" for a lone worker.
      values: dict of name -> figure: the metrics of each label, and `loss`, which is of the last step alone.
      steps_per_sec: steps per second, the mean over the workers.
      examples_per_sec: examples per second, the sum over the workers; None for a model without labels, whose number of
        examples is not known.
      own: `WorkerFigures` of this worker alone, at that step.
      cache_hit_rate: share of the keys looked up so far by these workers that needed no call to the service; None
        without a service.
      workers: number of the workers that the line is about.
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
        """Lists the figures that files keep of the line.

        Returns:
          dict of name -> float.
        """
        figures = {name: getattr(self.own, name) for name in ("lr", "sync_ms", "sync_wait_ms")}
        figures |= {"cache_hit_rate": self.cache_hit_rate, **self.values, "examples_per_sec": self.examples_per_sec}
        return {name: value for name, value in figures.items() if value is not None}


def pack(metrics: dict[str, ClickMetrics], loss: float, weight: float, own: WorkerFigures) -> np.ndarray:
    """Packs a worker's figures into a vector. The vectors of several workers add up.

    Args:
      metrics: dict of label -> its `ClickMetrics`.
      loss: loss of the last step on this worker, a mean over examples.
      weight: sum of the weights of these examples.
      own: `WorkerFigures` of this worker, with its rates.

    Returns:
      float64[n]; n depends on the labels only.
    """
    rest = [loss * weight, weight, own.steps_per_sec, own.examples_per_sec, 1.0, own.hits, own.misses]
    return np.concatenate([*(each.sums() for each in metrics.values()), rest])


def since(sums: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """Returns the sums of a line alone: the AUC in `sums` is of all examples since the start, the rest of the line's.

    Args:
      sums: float64[n] of a line, see `pack`.
      before: float64[n] of the previous line; None if there is none.
    """
    found = sums.copy()
    if before is not None:
        for first in range(0, len(sums) - ClickMetrics.SUMS, ClickMetrics.SUMS):
            found[first : first + 2 * COARSE_BINS] -= before[first : first + 2 * COARSE_BINS]
    return found


def unpack(sums: np.ndarray, labels: Sequence[str], step: int, of: str, own: WorkerFigures) -> Line:
    """Makes a line of the workers' sums.

    Args:
      sums: float64[n], the sum of the vectors that the workers packed.
      labels: names of the labels, in the order of `pack`.
      step, of, own: see `Line`.

    Returns:
      `Line`.
    """
    *parts, rest = np.split(sums, ClickMetrics.SUMS * np.arange(1, len(labels) + 1))
    values: dict[str, float] = {}
    for label, part in zip(labels, parts, strict=True):
        values |= {metric_name(name, label): value for name, value in ClickMetrics.results_of(part).items()}
    loss = Mean()
    loss.state[:], (steps_per_sec, examples_per_sec, workers, hits, misses) = np.split(rest, [-_PACE])
    values["loss"] = loss.result()
    rate = hits / (hits + misses) if hits + misses else None
    examples_per_sec = examples_per_sec if labels else None
    return Line(step, of, values, steps_per_sec / workers, examples_per_sec, own, rate, int(workers))
