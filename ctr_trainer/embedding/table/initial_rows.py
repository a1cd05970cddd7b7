"""What rows are before they were trained."""

import numpy as np

from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.sparse_optimizers import find_optimizer
from ctr_trainer.messages.errors import UserError


class InitialRows:
    """The rows that a table's new keys start with, a pure function of (config.seed, key).

    Args:
      config: a TableConfig.

    Raises:
      UserError: Adagrad with an accumulator that starts at or below zero, which would divide by zero.
    """

    def __init__(self, config):
        if config.optimizer == "adagrad" and not config.initial_accumulator > 0:
            raise UserError(
                f"table {config.name}: adagrad needs an initial_accumulator above 0, not {config.initial_accumulator}"
            )
        self._width, self._seed = config.width, np.uint64(config.seed % 2**64)
        self._dims = np.array(config.dims, np.int64)
        self._scales = np.array(config.init_scales, np.float32)
        self._state = find_optimizer(config.optimizer).initial_state(config.dims, config.initial_accumulator)

    def of(self, keys):
        """int64[U], contiguous -> float32[U, width]."""
        rows = np.empty((len(keys), self._width), np.float32)
        self.fill(keys, rows)
        return rows

    def fill(self, keys, rows):
        """Sets float32[U, width] to the rows of int64[U], contiguous."""
        row_kernels.initialize(rows, keys, self._seed, self._dims, self._scales, self._state)
