"""The optimizer steps of a training, which rows of a dense optimizer make up for when they missed them."""

from collections.abc import Iterator

import numpy as np

from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.embedding.table.table_config import TableConfig

# Rows that are caught up under one hold of their lock.
_BLOCK = 8192


class StepHistory:
    """The number of optimizer steps so far and their learning rates, with the L2 of each.

    A process knows the rates of its own steps. A row that is first met after a resume makes up for the steps before the
    resume at the first rate that is known.

    Args:
      first: the global step that the process starts from.
      l2: the factor of l2 / 2 * sum w^2 over the whole table.
    """

    def __init__(self, first: int, l2: float) -> None:
        self._first, self._l2 = first, l2
        self._rates, self._count, self._knows_rate = np.zeros(1024, np.float32), 0, False

    @property
    def steps(self) -> int:
        """The number of optimizer steps so far."""
        return self._first + self._count

    def begin_step(self, learning_rate: float) -> None:
        """Says the learning rate of the next step."""
        if self._count == len(self._rates):
            self._rates = np.concatenate([self._rates, np.zeros_like(self._rates)])
        self._rates[self._count], self._knows_rate = learning_rate, True

    def end_step(self) -> None:
        """Counts the step that was begun."""
        self._count += 1

    def catch_up(self, config: TableConfig, rows: np.ndarray, slots: np.ndarray, taken: int) -> None:
        """Makes the steps that rows missed.

        Args:
          config: `TableConfig` of a table with a dense optimizer.
          rows: float32[n, width], changed in place.
          slots: int64[U], distinct; -1 is skipped.
          taken: how many steps the rows count as having taken then; one more than `steps` if the caller steps them.
        """
        if not self._knows_rate:
            return  # The first step of a process: its rows are caught up when they take it.
        optimizer = OPTIMIZERS[config.optimizer.name]
        assert optimizer.catch_up is not None
        of_steps = self._first, self._rates, self.steps, taken
        settings = np.float32(self._l2), *optimizer.kernel_settings(config.optimizer)
        optimizer.catch_up(rows, slots, np.array(config.dims), *of_steps, *settings)


def blocks_of_rows(keys: np.ndarray) -> Iterator[np.ndarray]:
    """Yields int64[n], the slots of a table's rows in parts; `keys` has the key of each slot, 0 for a free one."""
    slots = np.flatnonzero(keys)
    for first in range(0, len(slots), _BLOCK):
        yield slots[first : first + _BLOCK]
