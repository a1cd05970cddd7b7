"""The memory of a worker's cache: copies of rows, and the state of each row."""

import numpy as np

from ctr_trainer.embedding.memory.growable_array import GrowableArray, RowLock, TableMemory
from ctr_trainer.embedding.store.row_codec import RowCodec
from ctr_trainer.embedding.store.versions import ABSENT, ChangedRows
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import kept_row_kernels, merging
from ctr_trainer.embedding.worker.kept_rows import KeptMessage, KeptRows
from ctr_trainer.embedding.worker.merging import Shares

# After this number of steps the counts of a row are halved, so that p follows a row that becomes frequent or rare.
_HALVED_STEPS = 512
# The indices of three step numbers: the current step, and the steps at which the last two windows began.
_NOW, _BEGAN, _LAST_BEGAN = range(3)


class RowFrequency:
    """Counts the steps of each row, and estimates p, the fraction of the worker's steps that update the row.

        p = (n - 1) / (T - 1)

    T is the number of the worker's steps since the beginning of the window of the row's first update, and n the number
    of these steps that updated the row. Both counts exclude one step: without it the row would not be here, so it
    contains no information about p. If T is 1, p is 0. An estimate from only one window would be inaccurate for small
    n; docs/staleness.md reports the cost. When T exceeds 512, n and T are halved.

    A slot is the index of a row, of at most `most_rows`. The steps of all workers that share `memory` are counted
    together. This class is not thread-safe.
    """

    def __init__(self, memory: TableMemory, most_rows: int) -> None:
        self._numbers = memory.counts("frequency", 3)
        self._steps = memory.array("steps", np.uint16, most_rows=most_rows)  # Since the last `take` of the row.
        self._met = memory.array("met", np.float32, most_rows=most_rows)  # n, up to the last `take`.
        self._since = memory.array("since", np.uint32, most_rows=most_rows)

    @property
    def arrays(self) -> tuple[GrowableArray, GrowableArray, GrowableArray]:
        """The arrays with one element per row, which is 0 for a new row."""
        return self._steps, self._met, self._since

    def step(self, slots: np.ndarray) -> None:
        """Counts a step of the rows at `slots`, C-contiguous int64[U]; -1 is skipped."""
        merging.count_step(self._steps.array, slots)
        self._numbers[_NOW] += 1

    def begin_window(self) -> None:
        """Begins a window; `take` now ends the previous window."""
        self._numbers[[_LAST_BEGAN, _BEGAN]] = self._numbers[[_BEGAN, _NOW]]

    def take(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Ends the window of the rows at `slots`, int64[U]. Returns (p, float32[U]; steps in the window, int64[U]).

        Steps that training makes between `begin_window` and `take` count for this window.
        """
        rates, steps = np.empty(len(slots), np.float32), np.empty(len(slots), np.int64)
        now, _, began = (int(number) for number in self._numbers)
        merging.take_rates(
            self._steps.array, self._met.array, self._since.array, slots, now, began, _HALVED_STEPS, rates, steps
        )
        return rates, steps


class CachedRows(KeptRows):
    """Copies of rows that others also change; each row has a state, a base and a version.

    The base of a row is the service's row that this worker last received, plus the changes that this worker has sent. A
    row without a change to send equals its base, except for the rounding error of a codec. A row is `STEPPED` from a
    step until its change is taken, and `IN_FLIGHT` from then until the change lands; a row may be both.

    `shares` is the part of a row's change that `take` returns; None for the whole change.
    """

    def __init__(self, config: TableConfig, shares: Shares | None, memory: TableMemory) -> None:
        super().__init__(config, memory)
        self._shares = shares
        most = self._most_rows
        self._base = memory.array("base", np.float32, (config.width,), most)
        self._versions = memory.array("versions", np.uint32, most_rows=most)
        self._frequency = RowFrequency(memory, most)
        self._shares_met = memory.array("shares_met", np.float32, most_rows=most)  # At the last `take`.

    @property
    def nbytes(self) -> int:
        return 2 * self.table.nbytes

    def mark_stepped(self, slots: np.ndarray) -> None:
        super().mark_stepped(slots)
        if self._shares is not None:
            self._frequency.step(np.require(slots, np.int64, ("C",)))

    def checked_in(self, window: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns (keys int64[n], versions uint32[n]) of the rows last checked in `window`."""
        slots = np.flatnonzero(self._stamps.array[: len(self)] == window)
        return self.table.keys[slots], self._versions.array[slots]

    def end_window(self, lock: RowLock, message: KeptMessage) -> np.ndarray:
        with lock.alone():
            self._frequency.begin_window()
            return self._stepped(message)

    def l2_shares(self, slots: np.ndarray) -> np.ndarray | None:
        return None if self._shares is None else self._shares.l2_factor * self._shares_met.array[slots]

    def take(self, slots: np.ndarray, codec: RowCodec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the changes of the rows at `slots`, int64[U], and marks these rows as in flight.

        The codec's rounding error of a change stays in the row and is sent with the next change. With `shares`, the
        next change is multiplied by its share, so the rounding error divided by the share of this change stays in the
        row.

        Returns (keys int64[U], versions uint32[U], deltas encoded by `codec`).
        """
        take = self._take_exact if codec.is_exact else self._take_rounded
        return self.table.keys[slots], self._versions.array[slots], take(slots, codec)

    def land(
        self, slots: np.ndarray, versions: np.ndarray, positions: np.ndarray, rows: np.ndarray, window: int
    ) -> None:
        """Ends the flight of `slots`: `rows` become the base at slots[positions], and later steps are added to them.

        Args:
          slots: int64[U], the slots of `take`.
          versions: uint32[U], the new version of each row at `slots`.
          positions: int64[n], the positions in `slots` of the returned `rows`.
          window: the window in which the rows at `slots` then count as checked.
        """
        kept_row_kernels.land(
            self.table.rows,
            self._base.array,
            self._state.array,
            self._versions.array,
            self._stamps.array,
            slots,
            versions,
            positions,
            rows,
            window,
        )

    def accept(
        self, keys: np.ndarray, known: np.ndarray, newer: ChangedRows, rows: np.ndarray, window: int, create: bool
    ) -> None:
        # Adds the steps since the request to the rows of the answer.
        slots = self.table.find(keys)
        if (slots < 0).any():
            self._add(keys, slots < 0, newer.positions, create)
            slots = self.table.find(keys)
        kept_row_kernels.accept(
            self.table.rows,
            self._base.array,
            self._state.array,
            self._versions.array,
            self._stamps.array,
            slots,
            known,
            newer.versions,
            newer.positions,
            rows,
            window,
        )

    def mark_unsent(self) -> None:
        unsent = (self.table.rows != self._base.array[: len(self)]).any(axis=1)
        self._state.array[: len(self)][unsent] |= kept_row_kernels.STEPPED

    def _take_exact(self, slots: np.ndarray, codec: RowCodec) -> np.ndarray:
        rows, base, state = self.table.rows, self._base.array, self._state.array
        deltas = np.empty((len(slots), rows.shape[1]), np.float32)
        if self._shares is None:
            kept_row_kernels.take_changes(rows, base, state, slots, deltas)
        else:
            shares = self._take_shares(slots)
            kept_row_kernels.take_shares(rows, base, state, slots, self._shares.bounds, shares, deltas)
        return codec.encode(deltas)

    def _take_rounded(self, slots: np.ndarray, codec: RowCodec) -> np.ndarray:
        rows, base = self.table.rows, self._base.array
        changes = np.empty((len(slots), rows.shape[1]), np.float32)
        row_kernels.difference(rows, base, slots, changes)
        shares = 1 if self._shares is None else self._shares.by_float(self._take_shares(slots))
        deltas = codec.encode(changes * shares)
        sent = codec.decode(deltas)
        row_kernels.add(base, slots, sent)
        if self._shares is not None:
            row_kernels.put(rows, slots, base[slots] + (changes - sent / shares))
        self._state.array[slots] = kept_row_kernels.IN_FLIGHT
        return deltas

    def _take_shares(self, slots: np.ndarray) -> np.ndarray:
        """Returns float32[2, U], see `Shares.of`, from the rows' steps so far; keeps the shares for `l2_shares`."""
        assert self._shares is not None
        rates, steps = self._frequency.take(slots)
        share = self._shares.by_rates(rates)
        self._shares_met.array[slots] = share
        return self._shares.of(share, steps)

    def _known(self, slots: np.ndarray) -> np.ndarray:
        known = np.full(len(slots), ABSENT, np.uint32)
        known[slots >= 0] = self._versions.array[slots[slots >= 0]]
        return known

    def _row_arrays(self) -> tuple[GrowableArray, ...]:
        more = self._base, self._versions, self._shares_met, *self._frequency.arrays
        return *super()._row_arrays(), *more

    def _add(self, keys: np.ndarray, unknown: np.ndarray, answered: np.ndarray, create: bool) -> None:
        """Makes rows for unknown keys: zeros at the positions `answered`, initial rows at the others if `create`."""
        first = len(self)
        came = np.zeros(len(keys), bool)
        came[answered] = True
        there, absent = keys[unknown & came], keys[unknown & ~came]
        self.table.find_or_insert(there, np.zeros((len(there), self.table.config.width), np.float32))
        if create:
            self.table.find_or_create(absent)
        self._begin(first)

    def _begin(self, first: int) -> None:
        super()._begin(first)
        count = len(self)
        self._base.array[first:count] = self.table.rows[first:]
        self._shares_met.array[first:count] = 1
