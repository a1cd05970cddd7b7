"""How well predictions agree with labels, over the range of the predictions."""

import math

import numba
import numpy as np

from ctr_trainer.metrics.auc import BINS, bin_of

ROWS = 10


class Reliability:
    """The mean prediction and the mean label of each decile of the examples, by prediction.

    The examples of one bin of the logit (0.00024 wide, see `auc.AUC`) are never split: all of them go to the decile of
    the bin's middle. So the deciles are equal to within a bin, and there are fewer than ten if many predictions are
    tied.

    Attributes:
      state: float64[3, bins], per bin the sums of weights, weighted predictions and weighted labels; the states of two
        workers add up.
    """

    def __init__(self):
        self.state = np.zeros((3, BINS))

    def update(self, logits, labels, weights):
        """Adds examples.

        Args:
          logits: float32[B]; after a NaN the table has no rows.
          labels, weights: float32[B].
        """
        _add(logits, labels, weights, self.state)

    def reset(self):
        self.state[:] = 0

    def table(self):
        """Computes the figures of each decile.

        Returns:
          list of dicts, by ascending prediction: `decile` (1 to 10), `weight` (sum of the examples' weights),
            `prob_mean`,
          `real_mean` and `copc`.
        """
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
    """Computes clicks over predicted clicks, 1 if the predictions are calibrated.

    Args:
      labels: sum or mean of the labels.
      predictions: sum or mean of the predictions of the same examples.

    Returns:
      `labels / predictions`; NaN if `predictions` is 0.
    """
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
