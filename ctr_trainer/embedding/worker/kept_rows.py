"""The rows that a worker keeps of a store's table, and what it knows of each row."""

import abc

import numpy as np

from ctr_trainer.embedding.memory.growable_array import row_bytes
from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.worker import kept_row_kernels

# A row that was not used in this many windows may be dropped.
KEPT_WINDOWS = 8
# Of fewer rows none is dropped.
_TIDY_ROWS = 1 << 16
# Rows per hold of the lock, about a millisecond's work, so that no thread waits for long.
_LOCKED_ROWS = 1 << 13


class KeptRows(abc.ABC):
    """Rows, and for each row its state and its stamp, the window in which it was last checked.

    A row is `STEPPED` from a step until its change is taken.

    Not safe to use from several threads at a time: `RowCache` locks it. Slots are valid until `tidy`.

    Args:
      config: the TableConfig.
      memory: where the arrays lie: `PrivateMemory`, or `SharedMemory`.

    Attributes:
      table: the Table of the rows.
    """

    def __init__(self, config, memory):
        self.table = Table(config.without_limits(), memory=memory)  # The service says which keys have rows.
        # As many rows as fit into the memory; without this bound each array would reserve address space for all of it.
        self._most_rows = memory_total() // row_bytes(np.float32, (config.width,))
        self._state = memory.array("state", np.uint8, most_rows=self._most_rows)
        self._stamps = memory.array("stamps", np.uint32, most_rows=self._most_rows)

    def __len__(self):
        return len(self.table)

    @property
    def nbytes(self):
        """About how many bytes the rows take, with what is kept beside them."""
        return self.table.nbytes

    def stale(self, keys, since):
        """Looks keys up, and says which rows have to be pulled.

        Args:
          keys: int64[U].
          since: a window; a row that was last checked before it has to be pulled.

        Returns:
          (slots int64[U], keys int64[n] of the rows to pull, versions uint32[n] in which these rows are here)
        """
        slots, positions = self.table.find(keys), np.empty(len(keys), np.int64)
        count = kept_row_kernels.find_stale(keys, slots, self._state.array, self._stamps.array, since, positions)
        positions = positions[:count]
        return slots, keys[positions], self._known(slots[positions])

    def mark_stepped(self, slots):
        """Marks the rows at `slots`, int64[U], as changed by an optimizer step."""
        kept_row_kernels.mark_stepped(self._state.array, np.require(slots, np.int64, ("C",)))

    def _stepped(self, message):
        """-> int64[n], the slots of the rows that have a change to send, in memory of a `KeptMessage`.

        Beside a step it may miss rows of that step, never others.
        """
        state = self._state.array[: len(self)]
        slots = message.column("slots", np.int64, kept_row_kernels.count_stepped(state))
        return slots[: kept_row_kernels.find_stepped(state, slots)]

    @staticmethod
    def blocks(count):
        """-> the slices of `count` rows that are taken in one hold of the lock each."""
        return [slice(first, min(first + _LOCKED_ROWS, count)) for first in range(0, count, _LOCKED_ROWS)]

    @abc.abstractmethod
    def end_window(self, lock, message):
        """Ends a window: from here on, its changes are taken.

        Args:
          lock: `RowLock` of the rows, not held.
          message: `KeptMessage` for the answer.

        Returns:
          int64[n], the slots of the rows that have a change to send.
        """

    def make(self, keys, window):
        """-> int64[U] slots of `keys`; a key without a row here gets an initial row, checked in `window`."""
        first = len(self)
        slots = self.table.find_or_create(keys)
        self._begin(first)
        self._stamps.array[first : len(self)] = window
        return slots

    @abc.abstractmethod
    def accept(self, keys, known, newer, rows, window, create):
        """Takes the answer to a pull, except for rows that another answer has overtaken.

        Args:
          keys: int64[U], the keys of the request.
          known: uint32[U], the versions of the request.
          newer: `ChangedRows`, the answer.
          rows: float32[n, width], the decoded rows of the answer.
          window: the window in which the request was made.
          create: whether a key that has no row anywhere gets an initial row here.
        """

    @abc.abstractmethod
    def mark_unsent(self):
        """Marks the rows that hold something that a codec rounded away from an earlier change, so that it is sent."""

    def tidy(self, window):
        """Drops the rows that were not used in the last eight windows, and renumbers the slots.

        Nothing is dropped if there are fewer than 65,536 rows, or if more than half of them were used. A row with a
        change to send stays until the change is sent.
        """
        count = len(self)
        if count < _TIDY_ROWS:
            return
        used = self._stamps.array[:count] + np.uint32(KEPT_WINDOWS) > window
        if 2 * np.count_nonzero(used) > count:
            return
        self.mark_unsent()
        kept = np.flatnonzero(used | (self._state.array[:count] > 0))
        keys, rows = self.table.keys[kept], self.table.take(kept)
        beside = [(array, array.array[kept]) for array in self._beside()]
        self.table.clear()
        self.table.find_or_insert(keys, rows)
        for array, values in beside:
            array.array[: len(kept)] = values

    @abc.abstractmethod
    def _known(self, slots):
        """-> uint32[n], the versions of the rows at `slots`, int64[n]; ABSENT for the slot -1."""

    def _beside(self):
        """-> the arrays with one element per row, without the table's own."""
        return self._state, self._stamps

    def _begin(self, first):
        """Sets what is kept beside each new row: those from slot `first` on."""
        count = len(self)
        for array in self._beside():
            array.reserve(count)
            array.array[first:count] = 0
