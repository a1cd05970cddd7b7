"""Rows that one host alone changes."""

import numpy as np

from ctr_trainer.embedding.store.versions import ABSENT
from ctr_trainer.embedding.worker import kept_row_kernels
from ctr_trainer.embedding.worker.kept_rows import KeptRows


class OnlyCopy(KeptRows):
    """Rows of a table that nobody else changes: a sync sends whole rows, and the service puts them in place of its own.

    A row that is here is never older than the service's. So it has no base and no version, and takes half the memory
    of a row of `CachedRows`. Of an answer to a pull only the rows count that are still missing here.

    Args:
      config: the TableConfig, without limits: else the service, too, would change rows.
      memory: see `KeptRows`.
    """

    def end_window(self, lock, message):
        """As `KeptRows.end_window`, without the lock: a row that is stepped meanwhile goes as it is when taken."""
        return self._stepped(message)

    def mark_unsent(self):
        """Does nothing: nothing is rounded away."""

    def take(self, slots, window, keys, rows):
        """Takes rows to send; they have no change to send after that, and count as checked in `window`.

        Args:
          slots: int64[U].
          window: the present window.
          keys: out: int64[U].
          rows: out: float32[U, width].
        """
        kept_row_kernels.take_rows(self.table.rows, self._state.array, self._stamps.array, slots, window, rows)
        np.take(self.table.keys, slots, out=keys)

    def accept(self, keys, known, newer, rows, window, create):
        """As `KeptRows.accept`."""
        missing = self.table.find(keys) < 0
        if not missing.any():
            return
        first, there = len(self), missing[newer.positions]
        self.table.find_or_insert(keys[newer.positions[there]], rows[there])
        if create:
            missing[newer.positions] = False
            self.table.find_or_create(keys[missing])
        self._begin(first)
        self._stamps.array[first : len(self)] = window

    def l2_shares(self, slots):
        """-> None: all factors on L2 are 1, see `CachedRows.l2_shares`."""

    def _known(self, slots):
        return np.full(len(slots), ABSENT, np.uint32)
