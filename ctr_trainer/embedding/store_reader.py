"""Rows read from a store for one lookup, and not kept."""

import contextlib

import numpy as np


class StoreReader:
    """Reads the rows of each lookup from the store as they are then; creates none. For one thread.

    Args:
      store: a `Store` that has the table.
      config: the TableConfig.

    Attributes:
      config: as given.
      rows: float32[U, width] of the last lookup; valid until the next.
      lock: nothing to hold: only the thread that looks up changes `rows`.
    """

    def __init__(self, store, config):
        self.config = config
        self.rows = np.empty((0, config.width), np.float32)
        self.lock = contextlib.nullcontext()
        self._store = store

    def find(self, keys):
        """int64[U] -> int64[U], the places in `rows`, of which those of unknown keys are zeros."""
        self.rows = self._store.pull(self.config.name, keys, missing="zeros")
        return np.arange(len(keys))
