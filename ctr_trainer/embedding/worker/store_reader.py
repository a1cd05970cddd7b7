"""Rows that are read from a store for one lookup and not kept."""

import numpy as np

from ctr_trainer.embedding.store.worker_rows import WorkerRows


class StoreReader(WorkerRows):
    """Reads the rows of each lookup from the store; creates and trains no row. For one thread.

    Args:
      store: a `Store` that has the table.
      config: the TableConfig.
    """

    def __init__(self, store, config):
        self.config = config
        self._rows = np.empty((0, config.width), np.float32)
        self._store = store

    @property
    def rows(self):
        """float32[U, width], the rows of the last lookup; valid until the next lookup."""
        return self._rows

    def find(self, keys):
        """int64[U] keys -> int64[U], the places of their rows in `rows`; an unknown key has a row of zeros."""
        self._rows = self._store.pull(self.config.name, keys, missing="zeros")
        return np.arange(len(keys))

    def find_or_create(self, keys, since=None):
        raise RuntimeError(f"table {self.config.name} is only read here: no key gets a row")

    def apply_gradients(self, slots, gradients, learning_rate):
        raise RuntimeError(f"table {self.config.name} is only read here: no row is trained")
