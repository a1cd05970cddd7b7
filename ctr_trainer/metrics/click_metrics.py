"""The metrics of a click model, kept together."""

import numpy as np

from ctr_trainer.metrics.auc import AUC
from ctr_trainer.metrics.mean import Mean


class ClickMetrics:
    """AUC, cross entropy, mean prediction and mean label of the examples added.

    Attributes:
      parts: the metrics by the name that the log and the summaries use.
    """

    def __init__(self):
        self.parts = {"auc": AUC(), "xentropy_mean": Mean(), "prob_mean": Mean(), "real_mean": Mean()}

    def update(self, logits, labels, weights):
        """Adds examples: float32[B] each; examples of weight 0 do not count."""
        self.parts["auc"].update(logits, labels, weights)
        self.parts["xentropy_mean"].update(np.logaddexp(0.0, logits) - labels * logits, weights)
        self.parts["prob_mean"].update(0.5 + 0.5 * np.tanh(0.5 * logits), weights)  # a sigmoid that cannot overflow
        self.parts["real_mean"].update(labels, weights)

    def results(self):
        """-> dict of name -> float."""
        return {name: metric.result() for name, metric in self.parts.items()}

    def merge(self, all_sum):
        """Replaces each state by its sum over the workers.

        Args:
          all_sum: f(array, name) -> array, a collective.
        """
        for name, metric in self.parts.items():
            metric.state[:] = all_sum(metric.state, f"metric.{name}")
