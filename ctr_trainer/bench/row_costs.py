"""For how long a worker holds the lock of rows that it shares, in one step."""

import statistics

import numpy as np

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.table.shared_table import SharedTable
from ctr_trainer.embedding.table.table_config import TableConfig

# The table has this many times the rows of a batch, so that they are not in the core's cache.
_BATCHES = 24


def lock_seconds(dims, optimizer, rows):
    """Steps the rows of batches in a table that no other process has open.

    Args:
      dims: of a row, as `TableConfig.dims`.
      optimizer: of the rows.
      rows: distinct rows of a batch.

    Returns:
      seconds for which one step of a batch holds the lock, the median of `_BATCHES` steps.
    """
    config = TableConfig("rows", tuple(dims), (0.01,) * len(dims), optimizer)
    table, rows = SharedTable(config, True, SharedMemory().under(config.name)), max(int(rows), 1)
    slots = np.random.default_rng(0).permutation(table.find_or_create(np.arange(1, _BATCHES * rows + 1)))
    gradients, held = [np.full((rows, dim), 1e-3, np.float32) for dim in dims], []
    for batch in slots.reshape(_BATCHES, rows):
        before = table.lock_times.held
        table.apply_gradients(batch, gradients, 0.01)
        held.append(table.lock_times.held - before)
    return statistics.median(held)
