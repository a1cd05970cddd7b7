"""The metrics of a click model, kept together."""

import numpy as np

from ctr_trainer.metrics.auc import AUC
from ctr_trainer.metrics.mean import Mean


class ClickMetrics:
    """AUC, cross entropy, mean prediction and mean label of the examples added, of one label.

    Attributes:
      parts: the metrics by the name that the log and the summaries use; the state of each adds over workers.
    """

    def __init__(self):
        self.parts = {"auc": AUC(), "xentropy_mean": Mean(), "prob_mean": Mean(), "real_mean": Mean()}

    def update(self, logits, labels, weights):
        """Adds examples: float32[B] each; examples of weight 0 do not count."""
        self.parts["auc"].update(logits, labels, weights)
        self.parts["xentropy_mean"].update(np.logaddexp(0.0, logits) - labels * logits, weights)
        self.parts["prob_mean"].update(sigmoid(logits), weights)
        self.parts["real_mean"].update(labels, weights)

    def results(self):
        """-> dict of name -> float."""
        return {name: metric.result() for name, metric in self.parts.items()}


def sigmoid(logits):
    """`1 / (1 + exp(-logits))` as float64: it cannot overflow, and small probabilities keep their digits."""
    return 0.5 + 0.5 * np.tanh(0.5 * np.asarray(logits, np.float64))


def metric_name(name, label):
    """-> what a metric of a label is called: `auc/click`; `auc` for a model of one label, which has no name."""
    return f"{name}/{label}" if label else name
