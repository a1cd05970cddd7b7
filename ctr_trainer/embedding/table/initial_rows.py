"""The values of rows before they are trained."""

import numpy as np

from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS


class InitialRows:
    """The rows that a table's new keys start with, a pure function of (config.seed, key).

    Args:
      config: a TableConfig.
    """

    def __init__(self, config):
        self._width, self._seed = config.width, np.uint64(config.seed % 2**64)
        self._dims = np.array(config.dims, np.int64)
        self._scales = np.array(config.init_scales, np.float32)
        self._state = OPTIMIZERS[config.optimizer.name].initial_state(config.dims, config.optimizer)

    def of(self, keys):
        """-> float32[U, width], the initial rows of `keys`, int64[U], contiguous."""
        rows = np.empty((len(keys), self._width), np.float32)
        self.fill(keys, rows)
        return rows

    def fill(self, keys, rows):
        """Sets `rows`, float32[U, width], to the initial rows of `keys`, int64[U], contiguous."""
        row_kernels.initialize(rows, keys, self._seed, self._dims, self._scales, self._state)
