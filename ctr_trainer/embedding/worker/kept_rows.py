"""The rows of a store's table that a worker keeps, and the state of each row."""

import numpy as np
import numpy.typing as npt

from ctr_trainer.embedding.memory.growable_array import GrowableArray, RowLock, TableMemory, row_bytes
from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.store.versions import ABSENT, ChangedRows
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import kept_row_kernels

# A row that was not checked in this number of windows may be dropped.
KEPT_WINDOWS = 8
# If there are fewer rows, no rows are dropped.
_TIDY_ROWS = 1 << 16
# The number of rows that are processed at once under the lock, about 1 ms of work, so that no thread waits for long.
_LOCKED_ROWS = 1 << 13


class KeptMessage:
    """Arrays for the slots of a sync and the columns of its requests; all requests of a worker use the same memory.

    Allocating memory costs more than copying rows into it: on a virtual machine, a request of 65,536 rows of 34 floats
    took 22 ms of CPU time with new memory, and takes 1 ms with reused memory.

    Caveat: a request must have ended before the next one is made.
    """

    def __init__(self) -> None:
        self._bytes: dict[str, np.ndarray] = {}

    def column(self, name: str, dtype: npt.DTypeLike, count: int, width: int | None = None) -> np.ndarray:
        """Returns an uninitialized array [count] or [count, width] for the column `name`, for example `keys`."""
        shape = (count,) if width is None else (count, width)
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        if name not in self._bytes or len(self._bytes[name]) < size:
            self._bytes[name] = np.empty(size, np.uint8)
        return self._bytes[name][:size].view(dtype).reshape(shape)


class KeptRows:
    """Rows with a state and a stamp, the window in which the row was last checked.

    A row is `STEPPED` from a step until its change is taken.

    No other host changes these rows; for rows that other hosts change, see `CachedRows`. A sync sends whole rows, which
    replace the rows of the service. A local row is never older than the service's row. So it has no base and no
    version, and takes half the memory of a row of `CachedRows`. The answer to a pull only adds rows that are still
    missing here.

    This class is not thread-safe; `RowCache` uses it under a lock. Slots are valid until `tidy`.

    Args:
      config: the TableConfig of a table without limits, except for `CachedRows`, because with limits the service also
        changes rows.
      memory: the memory of the arrays.

    Attributes:
      table: the Table of the rows.
    """

    def __init__(self, config: TableConfig, memory: TableMemory) -> None:
        self.table = Table(config.without_limits(), memory=memory)  # The service decides which keys have rows.
        # The rows that fit into memory. Without this bound each array would reserve address space for the whole memory.
        self._most_rows = memory_total() // row_bytes(np.float32, (config.width,))
        self._state = memory.array("state", np.uint8, most_rows=self._most_rows)
        self._stamps = memory.array("stamps", np.uint32, most_rows=self._most_rows)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        """The approximate number of bytes of the rows and their state."""
        return self.table.nbytes

    def stale(self, keys: np.ndarray, since: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Looks up int64[U] keys and selects the rows to pull: missing rows, and rows not checked since window `since`.

        Returns (slots int64[U], keys int64[n] of the rows to pull, local versions uint32[n] of these rows).
        """
        slots, positions = self.table.find(keys), np.empty(len(keys), np.int64)
        count = kept_row_kernels.find_stale(keys, slots, self._state.array, self._stamps.array, since, positions)
        positions = positions[:count]
        return slots, keys[positions], self._known(slots[positions])

    def mark_stepped(self, slots: np.ndarray) -> None:
        """Marks the rows at `slots`, int64[U], as changed by an optimizer step."""
        kept_row_kernels.mark_stepped(self._state.array, np.require(slots, np.int64, ("C",)))

    def _stepped(self, message: KeptMessage) -> np.ndarray:
        """Returns int64[n], the slots of the rows with a change to send, in the memory of a `KeptMessage`.

        If another thread makes a step meanwhile, rows of only that step may be missing.
        """
        state = self._state.array[: len(self)]
        slots = message.column("slots", np.int64, kept_row_kernels.count_stepped(state))
        return slots[: kept_row_kernels.find_stepped(state, slots)]

    @staticmethod
    def blocks(count: int) -> list[slice]:
        """Returns slices of `count` rows; each slice is processed at once under the lock."""
        return [slice(first, min(first + _LOCKED_ROWS, count)) for first in range(0, count, _LOCKED_ROWS)]

    def end_window(self, lock: RowLock, message: KeptMessage) -> np.ndarray:
        """Ends a window, whose changes can then be taken. Returns int64[n], the slots of the changed rows.

        This does not take the lock. A row that is updated meanwhile is sent with its values when it is taken.
        """
        return self._stepped(message)

    def take_rows(self, slots: np.ndarray, window: int, keys: np.ndarray, rows: np.ndarray) -> None:
        """Fills int64[U] `keys` and float32[U, width] `rows` with the rows at `slots`, for sending.

        The rows then have no change to send, and count as checked in `window`.
        """
        kept_row_kernels.take_rows(self.table.rows, self._state.array, self._stamps.array, slots, window, rows)
        np.take(self.table.keys, slots, out=keys)

    def make(self, keys: np.ndarray, window: int) -> np.ndarray:
        """Returns int64[U] slots of `keys`; a key without a local row gets an initial row, checked in `window`."""
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
          create: whether a key that has no row in the service either gets an initial row here.
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
        """Marks the rows that contain the rounding error of an earlier change, so that it is sent."""
        return

    def tidy(self, window: int) -> None:
        """Drops the rows that were not checked in the last eight windows, and renumbers the slots.

        Drops no rows if there are fewer than 65,536, or if more than half of them were checked. A row with a change to
        send is kept until the change is sent.
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
        """Returns the arrays with one element per row, except those of the table."""
        return self._state, self._stamps

    def _begin(self, first: int) -> None:
        """Initializes the state of each new row, from slot `first` on."""
        count = len(self)
        for array in self._row_arrays():
            array.reserve(count)
            array.array[first:count] = 0
