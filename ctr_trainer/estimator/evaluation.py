"""One pass over evaluation data."""

import numpy as np

from ctr_trainer import distributed
from ctr_trainer.estimator.training_hooks import metric_tensors
from ctr_trainer.metrics.mean import Mean
from ctr_trainer.metrics.metrics_by_label import MetricsByLabel, weights_of


class Evaluation:
    """Adds up a model's metrics, step by step, then over the ranks.

    Args:
      inputs: `DatasetInput` or `BatchInput`.
      spec: the `EstimatorSpec`.
    """

    def __init__(self, inputs, spec):
        own = spec.eval_metric_ops or {}
        self._fetches = {
            "click": metric_tensors(inputs, spec),
            "loss": spec.loss,
            "updates": {name: update for name, (_, update) in own.items()},
        }
        self._inputs = inputs
        self._click, self._loss, self._updates = MetricsByLabel(self._fetches["click"]), Mean(), {}
        self._examples = 0
        self.steps = 0

    def step(self, session):
        """Evaluates one batch."""
        values = session.run(self._fetches)
        click = values["click"]
        weight = 1.0
        if click:
            self._click.update(click)
            weight = weights_of(click).sum()
            self._examples += self._inputs.hook.batch.size if self._inputs.hook else len(weights_of(click))
        self._loss.update(np.array([values["loss"]], np.float32), np.array([weight], np.float32))
        self._updates = values["updates"]
        self.steps += 1

    def results(self):
        """-> dict of the metrics of all ranks. A collective."""
        self._click.merge(distributed.all_sum)
        self._loss.state[:] = distributed.all_sum(self._loss.state, "metric.loss")
        share = np.float64(self._examples or self.steps)
        total = distributed.all_sum(share, "metric.share")
        results = {"loss": self._loss.result()}
        if self._fetches["click"]:
            click = self._click.results()
            results.update(examples=int(total))
            results.update({name.replace("xentropy_mean", "logloss"): value for name, value in click.items()})
        for name, value in self._updates.items():
            results[name] = float(distributed.all_sum(np.float64(value) * share, f"metric.{name}") / total)
        return results
