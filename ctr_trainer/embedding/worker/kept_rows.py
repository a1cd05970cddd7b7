"""The rows that a worker keeps of a store's table, and what it knows of each row."""

import numpy as np
import numpy.typing as npt

from ctr_trainer.embedding.memory.growable_array import GrowableArray, RowLock, TableMemory, row_bytes
from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.store.versions import ABSENT, ChangedRows
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import kept_row_kernels

# A row that was not used in this many windows may be dropped.
KEPT_WINDOWS = 8
# If there are fewer rows, none is dropped.
_TIDY_ROWS = 1 << 16
# Rows per hold of the lock, about a millisecond's work, so that no thread waits for long.
_LOCKED_ROWS = 1 << 13


class KeptMessage:
    """Arrays for a sync, its slots and the columns of a request; each request of a worker uses the same memory.

    New memory costs more than the rows that are copied into it: where the machine is a virtual one, a request of 65,536
    rows of 34 floats took 22 ms of CPU in new memory, and takes 1 ms in memory that was used before.

    Caveat: a request has to have ended before the next one is made.
    """

    def __init__(self) -> None:
        self._bytes: dict[str, np.ndarray] = {}

    def column(self, name: str, dtype: npt.DTypeLike, count: int, width: int | None = None) -> np.ndarray:
        """Returns an array [count], or [count, width], of any values, for the column of that name, such as `keys`."""
        shape = (count,) if width is None else (count, width)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self._bytes or len(self._bytes[name]) < size:
            self._bytes[name] = np.empty(size, np.uint8)
        return self._bytes[name][:size].view(dtype).reshape(shape)


class KeptRows:
    """Rows, and for each row its state and its stamp, the window in which it was last checked.

    A row is `STEPPED` from a step until its change is taken.

    These are rows that no other host changes; `CachedRows` are others. A sync sends whole rows, which replace the rows
    of the service. A row that is here is never older than the service's. So it has no base and no version, and takes
    half the memory of a row of `CachedRows`. An answer to a pull only adds the rows that are still missing here.

    Not safe to use from several threads at a time: `RowCache` locks it. Slots are valid until `tidy`.

    Args:
      config: of a table without limits, but for `CachedRows`: else the service, too, would change rows.
      memory: where the arrays lie.

    Attributes:
      table: the Table of the rows.
    """

    def __init__(self, config: TableConfig, memory: TableMemory) -> None:
        self.table = Table(config.without_limits(), memory=memory)  # The service says which keys have rows.
        # As many rows as fit into the memory; without this bound each array would reserve address space for all of it.
        self._most_rows = memory_total() // row_bytes(np.float32, (config.width,))
        self._state = memory.array("state", np.uint8, most_rows=self._most_rows)
        self._stamps = memory.array("stamps", np.uint32, most_rows=self._most_rows)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        """About how many bytes the rows take, with what is kept for each row."""
        return self.table.nbytes

    def stale(self, keys: np.ndarray, since: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Looks int64[U] keys up, and says which rows have to be pulled: those last checked before the window `since`.

        Returns (slots int64[U], keys int64[n] of the rows to pull, versions uint32[n] in which these rows are here).
        """
        slots, positions = self.table.find(keys), np.empty(len(keys), np.int64)
        count = kept_row_kernels.find_stale(keys, slots, self._state.array, self._stamps.array, since, positions)
        positions = positions[:count]
        return slots, keys[positions], self._known(slots[positions])

    def mark_stepped(self, slots: np.ndarray) -> None:
        """Marks the rows at `slots`, int64[U], as changed by an optimizer step."""
        kept_row_kernels.mark_stepped(self._state.array, np.require(slots, np.int64, ("C",)))

    def _stepped(self, message: KeptMessage) -> np.ndarray:
        """Returns int64[n], the slots of the rows that have a change to send, in memory of a `KeptMessage`.

        During a step it may miss rows of that step, never others.
        """
        state = self._state.array[: len(self)]
        slots = message.column("slots", np.int64, kept_row_kernels.count_stepped(state))
        return slots[: kept_row_kernels.find_stepped(state, slots)]

    @staticmethod
    def blocks(count: int) -> list[slice]:
        """Returns the slices of `count` rows that are taken in one hold of the lock each."""
        return [slice(first, min(first + _LOCKED_ROWS, count)) for first in range(0, count, _LOCKED_ROWS)]

    def end_window(self, lock: RowLock, message: KeptMessage) -> np.ndarray:
        """Ends a window: its changes are taken from here on. Returns int64[n], the slots of the changed rows.

        This does not take the lock: a row that is stepped meanwhile is sent as it is when it is taken.
        """
        return self._stepped(message)

    def take_rows(self, slots: np.ndarray, window: int, keys: np.ndarray, rows: np.ndarray) -> None:
        """Fills int64[U] `keys` and float32[U, width] `rows` with the rows at `slots`, to send.

        They have no change to send after that, and count as checked in `window`.
        """
        kept_row_kernels.take_rows(self.table.rows, self._state.array, self._stamps.array, slots, window, rows)
        np.take(self.table.keys, slots, out=keys)

    def make(self, keys: np.ndarray, window: int) -> np.ndarray:
        """Returns int64[U] slots of `keys`; a key without a row here gets an initial row, checked in `window`."""
        first = len(self)
        slots = self.table.find_or_create(keys)
        self._begin(first)
        self._stamps.array[first : len(self)] = window
        return slots

    def accept(
        self, keys: np.ndarray, known: np.ndarray, newer: ChangedRows, rows: np.ndarray, window: int, create: bool
    ) -> None:
        """Takes the answer to a pull, except for rows that another answer has overtaken.

        Args:
          keys: int64[U], the keys of the request.
          known: uint32[U], the versions of the request.
          newer: `ChangedRows`, the answer.
          rows: float32[n, width], the decoded rows of the answer.
          window: the window in which the request was made.
          create: whether a key that has no row anywhere gets an initial row here.
        """
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

    def l2_shares(self, slots: np.ndarray) -> np.ndarray | None:
        """Returns float32[U], the factor on L2 of each row at `slots`; None if all factors are 1."""
        return None

    def mark_unsent(self) -> None:
        """Marks the rows that hold something that a codec rounded away from an earlier change, so that it is sent."""
        return

    def tidy(self, window: int) -> None:
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
        arrays = [(array, array.array[kept]) for array in self._row_arrays()]
        self.table.clear()
        self.table.find_or_insert(keys, rows)
        for array, values in arrays:
            array.array[: len(kept)] = values

    def _known(self, slots: np.ndarray) -> np.ndarray:
        """Returns uint32[n], the versions of the rows at `slots`, int64[n]; ABSENT for the slot -1."""
        return np.full(len(slots), ABSENT, np.uint32)

    def _row_arrays(self) -> tuple[GrowableArray, ...]:
        """Returns the arrays with one element per row, without the table's own."""
        return self._state, self._stamps

    def _begin(self, first: int) -> None:
        """Sets what is kept for each new row, from slot `first` on."""
        count = len(self)
        for array in self._row_arrays():
            array.reserve(count)
            array.array[first:count] = 0
