"""The memory of a worker's cache: copies of rows, and what the worker knows of each row."""

import numpy as np

from ctr_trainer.embedding.memory.growable_array import row_bytes
from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.store import version_kernels
from ctr_trainer.embedding.store.versions import ABSENT
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.worker.row_frequency import RowFrequency

# A row that was not used in this many windows may be dropped.
KEPT_WINDOWS = 8
# A cache with fewer rows drops none.
_TIDY_ROWS = 1 << 16


class CachedRows:
    """Rows, and for each row its base, its version, its state and the window in which it was last checked.

    The base of a row is the service's row as far as this worker knows it, with the changes that this worker has sent. A
    row without a change to send equals its base, except for what a codec rounded away. A row is `STEPPED` from a step
    until its change is taken, and `IN_FLIGHT` from then until the change lands; a row may be both.

    Not safe to use from several threads at a time: `RowCache` locks it. Slots are valid until `tidy`.

    Args:
      config: the TableConfig.
      shares: `merging.Shares`, the part of a row's change that `take` gives; None for the whole change.
      memory: where the arrays lie: `PrivateMemory`, or `SharedMemory`.

    Attributes:
      table: the Table of the rows.
    """

    def __init__(self, config, shares, memory):
        self._shares = shares
        self.table = Table(config.without_limits(), memory=memory)  # The service says which keys have rows.
        # As many rows as fit into the memory; without this bound each array would reserve address space for all of it.
        most = memory_total() // row_bytes(np.float32, (config.width,))
        self._base = memory.array("base", np.float32, (config.width,), most)
        self._state = memory.array("state", np.uint8, most_rows=most)
        self._versions = memory.array("versions", np.uint32, most_rows=most)
        self._stamps = memory.array("stamps", np.uint32, most_rows=most)
        self._frequency = RowFrequency(memory, most)
        self._shares_met = memory.array("shares_met", np.float32, most_rows=most)  # As of the last take.

    def __len__(self):
        return len(self.table)

    @property
    def nbytes(self):
        """About how many bytes the rows and their bases take."""
        return 2 * self.table.nbytes

    def stale(self, keys, since):
        """Looks keys up, and says which rows have to be pulled.

        Args:
          keys: int64[U].
          since: a window; a row that was last checked before it has to be pulled.

        Returns:
          (slots int64[U], keys int64[n] of the rows to pull, versions uint32[n] in which these rows are here)
        """
        slots, positions = self.table.find(keys), np.empty(len(keys), np.int64)
        count = version_kernels.find_stale(keys, slots, self._state.array, self._stamps.array, since, positions)
        positions = positions[:count]
        known, of = np.full(count, ABSENT, np.uint32), slots[positions]
        known[of >= 0] = self._versions.array[of[of >= 0]]
        return slots, keys[positions], known

    def mark_stepped(self, slots):
        """Marks the rows at `slots`, int64[U], as changed by an optimizer step."""
        slots = np.require(slots, np.int64, ("C",))
        version_kernels.mark_stepped(self._state.array, slots)
        if self._shares is not None:
            self._frequency.step(slots)

    def stepped(self):
        """-> int64[n], the slots of the rows that have a change to send."""
        return np.flatnonzero(self._state.array[: len(self)] & version_kernels.STEPPED)

    def checked_in(self, window):
        """-> (keys int64[n], versions uint32[n]) of the rows that were last checked in `window`."""
        slots = np.flatnonzero(self._stamps.array[: len(self)] == window)
        return self.table.keys[slots], self._versions.array[slots]

    def begin_window(self):
        """Begins a window: from here on, `take` takes the changes of the window that ends here."""
        self._frequency.begin_window()

    def l2_shares(self, slots):
        """-> float32[U], the factor on L2 of each row, as of the last `take` of the row; None without `shares`.

        Args:
          slots: int64[U]; the factor at the slot -1 has no meaning.
        """
        return None if self._shares is None else self._shares.l2_factor * self._shares_met.array[slots]

    def take(self, slots, codec):
        """Puts the changes of the rows at `slots` in flight.

        What the codec rounds away from a change stays in the row and goes out with the next change. With `shares`, the
        next change is multiplied by its share, so what stays is the rounding error divided by the share of this change.

        Args:
          slots: int64[U].
          codec: `RowCodec`.

        Returns:
          (keys int64[U], versions uint32[U], deltas as `codec` encodes them)
        """
        take = self._take_exact if codec.is_exact else self._take_rounded
        return self.table.keys[slots], self._versions.array[slots], take(slots, codec)

    def land(self, slots, versions, positions, rows, window):
        """Ends the flight of `slots`: `rows` become the base at slots[positions]; steps since then stay on top.

        Args:
          slots: int64[U], as of `take`.
          versions: uint32[U], the new version of each row at `slots`.
          positions: int64[n], the positions in `slots` of the rows that came back.
          rows: float32[n, width], these rows.
          window: the window in which the rows at `slots` now count as checked.
        """
        version_kernels.land(*self._arrays(), slots, versions, positions, rows, window)

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
        slots = self.table.find(keys)
        if (slots < 0).any():
            self._add(keys, slots < 0, newer.positions, create)
            slots = self.table.find(keys)
        version_kernels.accept(*self._arrays(), slots, known, newer.versions, newer.positions, rows, window)

    def make(self, keys, window):
        """-> int64[U] slots of `keys`; a key without a row here gets an initial row, checked in `window`."""
        first = len(self)
        slots = self.table.find_or_create(keys)
        self._begin(first)
        self._stamps.array[first : len(self)] = window
        return slots

    def mark_unsent(self):
        """Marks the rows that hold something that a codec rounded away from an earlier change, so that it is sent."""
        unsent = (self.table.rows != self._base.array[: len(self)]).any(axis=1)
        self._state.array[: len(self)][unsent] |= version_kernels.STEPPED

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

    def _take_exact(self, slots, codec):
        rows, base, state = self.table.rows, self._base.array, self._state.array
        deltas = np.empty((len(slots), rows.shape[1]), np.float32)
        if self._shares is None:
            version_kernels.take_changes(rows, base, state, slots, deltas)
        else:
            shares = self._take_shares(slots)
            version_kernels.take_shares(rows, base, state, slots, self._shares.bounds, shares, deltas)
        return codec.encode(deltas)

    def _take_rounded(self, slots, codec):
        rows, base = self.table.rows, self._base.array
        changes = np.empty((len(slots), rows.shape[1]), np.float32)
        row_kernels.difference(rows, base, slots, changes)
        shares = 1 if self._shares is None else self._shares.by_float(self._take_shares(slots))
        deltas = codec.encode(changes * shares)
        sent = codec.decode(deltas)
        row_kernels.add(base, slots, sent)
        if self._shares is not None:
            row_kernels.put(rows, slots, base[slots] + (changes - sent / shares))
        self._state.array[slots] = version_kernels.IN_FLIGHT
        return deltas

    def _take_shares(self, slots):
        """-> float32[2, U], see `Shares.of`, by the rows' steps until now; keeps the shares for `l2_shares`."""
        rates, steps = self._frequency.take(slots)
        share = self._shares.by_rates(rates)
        self._shares_met.array[slots] = share
        return self._shares.of(share, steps)

    def _beside(self):
        """-> the arrays with one element per row, without the table's own."""
        return self._base, self._state, self._versions, self._stamps, self._shares_met, *self._frequency.arrays

    def _arrays(self):
        return self.table.rows, self._base.array, self._state.array, self._versions.array, self._stamps.array

    def _add(self, keys, unknown, answered, create):
        """Makes rows for unknown keys: rows of zeros at the positions `answered`, initial rows at the others."""
        first = len(self)
        came = np.zeros(len(keys), bool)
        came[answered] = True
        there, absent = keys[unknown & came], keys[unknown & ~came]
        self.table.find_or_insert(there, np.zeros((len(there), self.table.config.width), np.float32))
        if create:
            self.table.find_or_create(absent)
        self._begin(first)

    def _begin(self, first):
        """Sets what is kept beside each new row: those from slot `first` on."""
        count = len(self)
        for array in self._beside():
            array.reserve(count)
            array.array[first:count] = 0
        self._base.array[first:count] = self.table.rows[first:]
        self._shares_met.array[first:count] = 1
