"""How far predictions and what happened agree, over the range of the predictions."""

import math

import numba
import numpy as np

from ctr_trainer.metrics.auc import BINS, bin_of

ROWS = 10


class Reliability:
    """The examples by decile of their prediction, with each decile's mean prediction and mean label.

    Examples of one bin of the logit (0.00024 wide, see `auc.AUC`) are never split: all go to the decile of their
    middle. So the deciles are equal to within a bin, and there are fewer of them where predictions are tied.

    Attributes:
      state: float64[3, bins], weights, weighted predictions and weighted labels; the states of two workers add.
    """

    def __init__(self):
        self.state = np.zeros((3, BINS))

    def update(self, logits, labels, weights):
        """Adds examples: float32[B] each. A logit that is no number leaves a table without rows."""
        _add(logits, labels, weights, self.state)

    def reset(self):
        self.state[:] = 0

    def table(self):
        """-> a list of dicts, by ascending prediction: `decile` (1 to 10), `weight` (the sum of its examples' weights),
        `prob_mean`, `real_mean` and `copc`."""
        weights = self.state[0]
        total = weights.sum()
        if not total > 0:
            return []
        middle = np.cumsum(weights) - weights / 2
        decile = np.minimum((ROWS * middle / total).astype(np.int64), ROWS - 1)
        sums = np.stack([np.bincount(decile, column, minlength=ROWS) for column in self.state])
        rows = []
        for number, (weight, predictions, labels) in enumerate(sums.T, 1):
            if weight:
                means = dict(prob_mean=float(predictions / weight), real_mean=float(labels / weight))
                rows.append(dict(decile=number, weight=float(weight), **means, copc=copc(labels, predictions)))
        return rows


def copc(labels, predictions):
    """`sum labels / sum predictions`, clicks over predicted clicks: 1 where calibrated; NaN without predictions."""
    return float(labels / predictions) if predictions else float("nan")


@numba.njit(nogil=True, cache=True)
def _add(logits, labels, weights, state):
    for i in range(logits.shape[0]):
        if weights[i] == 0.0:
            continue
        if math.isnan(logits[i]):
            state[:] = math.nan
            return
        at = bin_of(logits[i])
        state[0, at] += weights[i]
        state[1, at] += weights[i] / (1.0 + math.exp(-logits[i]))
        state[2, at] += weights[i] * labels[i]
