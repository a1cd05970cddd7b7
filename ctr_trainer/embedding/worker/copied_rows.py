"""Copies of a store's rows, and the state of each copy."""

import contextlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ctr_trainer.embedding.memory.growable_array import GrowableArray, TableMemory, row_bytes
from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.store.versions import ABSENT, ChangedRows
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import copied_row_kernels
from ctr_trainer.embedding.worker.copied_row_kernels import IN_FLIGHT
from ctr_trainer.embedding.worker.merging import RowFrequency, Shares

# A row that was not checked in this number of windows may be dropped.
KEPT_WINDOWS = 8
# If there are fewer rows, no rows are dropped.
_TIDY_ROWS = 1 << 16


class KeptMessage:
    """Arrays for the slots of a sync and the columns of its requests; all requests of a worker use the same memory.

    With new memory, a request of 65,536 rows of 34 floats took 22 ms of CPU time instead of 1 ms. A request must have
    ended before the next one is made.
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


class CopiedRows:
    """Copies of rows. Each has a state and a stamp, the window in which it was last checked.

    A row is `STEPPED` from a step until its change is taken.

    If only one group of workers changes the rows, `shares` is None. A sync then sends whole
    rows, which replace the rows of the store (`take_rows`). A copy is never older than the store's row, so the answer
    to a pull only adds rows that are still missing here.

    Otherwise a sync sends changes (`take`). A row then also has a version and a base, which take as much memory again:
    the base is the store's row that was last received, plus the changes that were sent since. A row without a change to
    send equals its base. From the time when its change is taken until the
    change lands, a row is `IN_FLIGHT`; it may be `STEPPED` at the same time.

    This class is not thread-safe; `RowCopies` uses it under the table's lock. Slots are valid until `tidy`.

    Args:
      config: the TableConfig of the store's table.
      shares: the part of a row's change that `take` returns; None to send whole rows.
      memory: the memory of the arrays.

    `table`: the Table of the rows.
    """

    def __init__(self, config: TableConfig, shares: Shares | None, memory: TableMemory) -> None:
        self.table = Table(config.without_limits(), memory=memory)  # The store decides which keys have rows.
        # The rows that fit into memory. Without this bound each array would reserve address space for the whole memory.
        self._form = config.form
        most = memory_total() // row_bytes(np.float32, (self._form.lanes,))
        self._state = memory.array("state", np.uint8, most_rows=most)
        self._stamps = memory.array("stamps", np.uint32, most_rows=most)
        self._arrays = [self._state, self._stamps]  # With an element per row, 0 for a new row.
        self._has_base = shares is not None
        if shares is not None:
            self._shares, self._frequency = shares, RowFrequency(memory, most)
            self._base: GrowableArray = memory.array("base", np.float32, (self._form.lanes,), most)
            self._versions = memory.array("versions", np.uint32, most_rows=most)
            self._shares_met = memory.array("shares_met", np.float32, most_rows=most)  # At the last `take`.
            self._arrays += [self._base, self._versions, self._shares_met, *self._frequency.arrays]

    def __len__(self) -> int:
        return len(self.table)

    @property
    def nbytes(self) -> int:
        """The approximate number of bytes of the rows and their state."""
        return self.table.nbytes * (2 if self._has_base else 1)

    def stale(self, keys: np.ndarray, since: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Looks up int64[U] keys and selects the rows to pull: missing rows, and rows not checked since window `since`.

        Returns (slots int64[U], keys int64[n] of the rows to pull, local versions uint32[n] of these rows).
        """
        slots, positions = self.table.find(keys), np.empty(len(keys), np.int64)
        count = copied_row_kernels.find_stale(keys, slots, self._state.array, self._stamps.array, since, positions)
        positions = positions[:count]
        known = np.full(count, ABSENT, np.uint32)
        if self._has_base:
            own = slots[positions]
            known[own >= 0] = self._versions.array[own[own >= 0]]
        return slots, keys[positions], known

    def make(self, keys: np.ndarray, window: int) -> np.ndarray:
        """Returns int64[U] slots of `keys`; a key without a local row gets an initial row, checked in `window`."""
        first = len(self)
        slots = self.table.find_or_create(keys)
        self._begin(first, window)
        return slots

    def accept(self, keys: np.ndarray, known: np.ndarray, newer: ChangedRows, rows: np.ndarray, window: int) -> None:
        """Takes the answer `newer`, with decoded `rows`, to a pull of `keys` with versions `known`, made in `window`.

        Skips rows that another answer has overtaken, and keeps steps made meanwhile. A key that has no row in the store
        either gets an initial row here. One that was here at the request, and was dropped since, does not: the store
        has its row.
        """
        first, missing = len(self), self.table.find(keys) < 0
        if missing.any():
            there = missing[newer.positions]
            self.table.find_or_insert(keys[newer.positions[there]], rows[there])
            missing[newer.positions] = False
            missing &= known == ABSENT
            self.table.find_or_create(keys[missing])
            self._begin(first, window)
        if self._has_base:
            slots = self.table.find(keys)
            own = slots >= 0
            mine = slots[own]
            # A row that is in flight, or whose version has changed since the request, has had a later answer.
            own[own] = (self._state.array[mine] & IN_FLIGHT == 0) & (self._versions.array[mine] == known[own])
            there = own[newer.positions]
            positions = (np.cumsum(own) - 1)[newer.positions[there]]
            self.land(slots[own], newer.versions[own], positions, rows[there], window)

    def mark_stepped(self, slots: np.ndarray) -> None:
        """Marks the rows at `slots`, int64[U], as changed by an optimizer step."""
        slots = np.require(slots, np.int64, ("C",))
        copied_row_kernels.mark_stepped(self._state.array, slots)
        if self._has_base:
            self._frequency.step(slots)

    def l2_shares(self, slots: np.ndarray) -> np.ndarray | None:
        """Returns float32[U], the factor on L2 of each row at `slots`; None if all factors are 1."""
        return self._shares.l2_factor * self._shares_met.array[slots] if self._has_base else None

    def checked_in(self, window: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (keys int64[n], versions uint32[n]) of the rows with a base that were last checked in `window`."""
        slots = np.flatnonzero(self._stamps.array[: len(self)] == window)
        return self.table.keys[slots], self._versions.array[slots]

    def begin_window(self) -> None:
        """Ends the window whose changes are then taken."""
        if self._has_base:
            self._frequency.begin_window()

    def stepped(self, message: KeptMessage) -> np.ndarray:
        """Returns int64[n], the slots of rows with a change to send; a concurrent step may hide some."""
        state = self._state.array[: len(self)]
        slots = message.column("slots", np.int64, copied_row_kernels.count_stepped(state))
        return slots[: copied_row_kernels.find_stepped(state, slots)]

    def take_rows(self, slots: np.ndarray, window: int, keys: np.ndarray, rows: np.ndarray) -> None:
        """Fills `keys` and stored `rows` with the rows at `slots`; they then count as checked in `window`."""
        copied_row_kernels.take_rows(self.table.stored, self._state.array, self._stamps.array, slots, window, rows)
        np.take(self.table.keys, slots, out=keys)

    def take(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Marks the rows at `slots` as in flight; returns (keys, versions, shares of their changes in their form).

        The rows and their bases then have the rounded changes, as the rows of the store will.
        """
        rates, steps = self._frequency.take(slots)
        share = self._shares.by_rates(rates)
        self._shares_met.array[slots] = share
        shares, changes = self._shares.of(share, steps), np.empty((len(slots), self._form.width), np.float32)
        with self._opened(slots) as (rows, base, places):
            before = base if self._form.is_exact else base.copy()
            copied_row_kernels.take_shares(
                rows, base, places, self._state.array, slots, self._shares.bounds, shares, changes
            )
            deltas = self._form.encode(changes)
            if not self._form.is_exact:
                base[:] = rows[:] = before + self._form.decode(deltas)
        return self.table.keys[slots], self._versions.array[slots], deltas

    def land(
        self, slots: np.ndarray, versions: np.ndarray, positions: np.ndarray, rows: np.ndarray, window: int
    ) -> None:
        """Ends the flight of `slots`: `rows` become the base at slots[positions], and later steps are added to them.

        The rows at `slots` then have `versions`, uint32[U], and count as checked in `window` or later.
        """
        state = self._state.array, self._versions.array, self._stamps.array
        with self._opened(slots) as copies:
            copied_row_kernels.land(*copies, *state, slots, versions, positions, rows, window)

    def tidy(self, window: int) -> bool:
        """Drops the rows that were not checked in the last eight windows, and renumbers the slots.

        Drops no rows if there are fewer than 65,536, or if more than half of them were checked. A row with a change to
        send stays. Returns whether rows were dropped.
        """
        count = len(self)
        if count < _TIDY_ROWS:
            return False
        used = self._stamps.array[:count] + np.uint32(KEPT_WINDOWS) > window
        if 2 * np.count_nonzero(used) > count:
            return False
        kept = np.flatnonzero(used | (self._state.array[:count] > 0))
        keys, rows = self.table.keys[kept], self.table.take(kept)
        arrays = [(array, array.array[kept]) for array in self._arrays]
        self.table.clear()
        self.table.find_or_insert(keys, rows)
        for array, values in arrays:
            array.array[: len(kept)] = values
        return len(kept) < count

    @contextlib.contextmanager
    def _opened(self, slots: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yields (rows, bases, places of the slots in both), see `RowForm.opened`."""
        with self.table.opened(slots) as (rows, places), self._form.opened(self._base.array, slots) as (base, _):
            yield rows, base, places

    def _begin(self, first: int, window: int) -> None:
        """Initializes the state of each new row, from slot `first` on, checked in `window`."""
        count = len(self)
        for array in self._arrays:
            array.reserve(count)
            array.array[first:count] = 0
        self._stamps.array[first:count] = window
        if self._has_base:
            self._base.array[first:count] = self.table.stored[first:]
            self._shares_met.array[first:count] = 1
