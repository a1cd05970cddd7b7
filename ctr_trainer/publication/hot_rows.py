"""Rows that were read a moment ago."""

import time

import numpy as np

from ctr_trainer.embedding.index.hash_index import Index


class HotRows:
    """The rows of one table that were read lately; a row is given for `age_secs` at most. For one thread at a time.

    Args:
      width: floats of a row.
      most_rows: how many are kept; when there are more, all are forgotten.
      age_secs: for how long.
    """

    def __init__(self, width, most_rows, age_secs):
        self._index, self._most, self._age = Index(), most_rows, age_secs
        self._weights = np.empty((most_rows, width), np.float32)
        self._times, self._epochs = np.zeros(most_rows), np.zeros(most_rows, np.int64)

    def find(self, keys, epoch):
        """-> (float32[U, width], bool[U]: whether the row is there).

        Args:
          keys: int64[U].
          epoch: that is served: a row of an epoch before the last one is not given.
        """
        weights = np.zeros((len(keys), self._weights.shape[1]), np.float32)
        slots = self._index.find(keys)
        there = slots >= 0
        own = slots[there]
        there[there] = (self._times[own] > time.monotonic() - self._age) & (self._epochs[own] >= epoch - 1)
        weights[there] = self._weights[slots[there]]
        return weights, there

    def put(self, keys, weights, epoch):
        """Keeps rows that were read while `epoch` was served."""
        keys, weights = keys[: self._most], weights[: self._most]
        if len(self._index) + len(keys) > self._most:
            self._index.clear()
        slots = self._index.find_or_add(keys)
        self._weights[slots], self._times[slots], self._epochs[slots] = weights, time.monotonic(), epoch
