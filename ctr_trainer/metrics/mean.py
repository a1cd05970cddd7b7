"""Weighted means, so that workers' parts add up."""

import numpy as np


class Mean:
    """sum(weight * value) / sum(weight).

    Attributes:
      state: float64[2], the weighted sum and the weights; the states of two workers add.
    """

    def __init__(self):
        self.state = np.zeros(2)

    def update(self, values, weights):
        """Adds values: float32[B] each."""
        self.state += (np.dot(values.astype(np.float64), weights), weights.sum(dtype=np.float64))

    def reset(self):
        self.state[:] = 0

    def result(self):
        """-> float; NaN where nothing was added."""
        total, weight = self.state
        return float(total / weight) if weight else float("nan")
