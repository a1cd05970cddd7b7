"""Weighted means, whose states add up over workers."""

import numpy as np


class Mean:
    """The weighted mean sum(weight * value) / sum(weight).

    Attributes:
      state: float64[2], the sum of weighted values and the sum of weights; the states of two workers add up.
    """

    def __init__(self):
        self.state = np.zeros(2)

    def update(self, values, weights):
        """Adds values.

        Args:
          values, weights: float32[B].
        """
        # Not `np.dot`: for so many values OpenBLAS starts threads, which spin on the cores that the workers need.
        self.state += (np.multiply(values, weights, dtype=np.float64).sum(), weights.sum(dtype=np.float64))

    def reset(self):
        self.state[:] = 0

    def result(self):
        """Computes the mean.

        Returns:
          float; NaN if nothing was added.
        """
        total, weight = self.state
        return float(total / weight) if weight else float("nan")
