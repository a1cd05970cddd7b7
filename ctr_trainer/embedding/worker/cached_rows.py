"""The memory of a worker's cache: copies of rows, and what the worker knows of each."""

import numpy as np

from ctr_trainer.embedding.memory.growable_array import row_bytes
from ctr_trainer.embedding.memory.memory_limits import memory_total
from ctr_trainer.embedding.store import version_kernels
from ctr_trainer.embedding.store.versions import ABSENT
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.worker.row_frequency import RowFrequency

# A row that was not used in so many windows may go, where there are so many rows and most are like it.
KEPT_WINDOWS = 8
_TIDY_ROWS = 1 << 16


class CachedRows:
    """Rows with, for each, its base, version and state, and the window in which it was last checked.

    The base is the service's row as far as this worker knows it, with what this worker has sent: a row that has no
    change to send equals its base, but for what a codec rounded away. A row is `STEPPED` from a step until its change
    is taken, `IN_FLIGHT` from then until it lands; it may be both.

    Not safe to use from several threads at a time: see `RowCache`, which locks. Slots are valid until `tidy`.

    Args:
      config: the TableConfig.
      shares: `merging.Shares`, what part of a row's change `take` gives; None for all.
      memory: where all of it lies: `PrivateMemory`, or `SharedMemory`.

    Attributes:
      table: the Table of the rows.
    """

    def __init__(self, config, shares, memory):
        self._shares = shares
        self.table = Table(config.without_limits(), memory=memory)  # The service says which keys have rows.
        most = memory_total() // row_bytes(np.float32, (config.width,))  # Rows: less address space is reserved so.
        self._base = memory.array("base", np.float32, (config.width,), most)
        self._state = memory.array("state", np.uint8, most_rows=most)
        self._versions = memory.array("versions", np.uint32, most_rows=most)
        self._stamps = memory.array("stamps", np.uint32, most_rows=most)
        self._frequency = RowFrequency(memory, most)
        self._shares_met = memory.array("shares_met", np.float32, most_rows=most)  # As of the last take.

    def __len__(self):
        return len(self.table)

    def stale(self, keys, since):
        """Looks keys up.

        Args:
          keys: int64[U].
          since: the first window that counts.

        Returns:
          (slots int64[U], keys int64[n] of those that are not here or were checked before, their versions uint32[n])
        """
        slots, positions = self.table.find(keys), np.empty(len(keys), np.int64)
        count = version_kernels.find_stale(keys, slots, self._state.array, self._stamps.array, since, positions)
        positions = positions[:count]
        known, of = np.full(count, ABSENT, np.uint32), slots[positions]
        known[of >= 0] = self._versions.array[of[of >= 0]]
        return slots, keys[positions], known

    def mark_stepped(self, slots):
        """After an optimizer step of the rows at `slots` int64[U]."""
        slots = np.require(slots, np.int64, ("C",))
        version_kernels.mark_stepped(self._state.array, slots)
        if self._shares is not None:
            self._frequency.step(slots)

    def stepped(self):
        """-> int64[n], the slots of the rows that have a change to send."""
        return np.flatnonzero(self._state.array[: len(self)] & version_kernels.STEPPED)

    def checked_in(self, window):
        """-> (keys int64[n], versions uint32[n]) of the rows last checked in `window`."""
        slots = np.flatnonzero(self._stamps.array[: len(self)] == window)
        return self.table.keys[slots], self._versions.array[slots]

    def begin_window(self):
        """The changes that are taken from here on are those of the window that ends here."""
        self._frequency.begin_window()

    def l2_shares(self, slots):
        """-> float32[U], what L2 of the rows counts for, by the last takes; None without `shares`.

        Args:
          slots: int64[U]; what it says of -1 means nothing.
        """
        return None if self._shares is None else self._shares.l2_factor * self._shares_met.array[slots]

    def take(self, slots, codec):
        """Puts the changes of the rows at `slots` in flight. -> (keys, versions, deltas as `codec` encodes them)

        What the codec rounds away from a change stays in the row, so that it goes out with the next; with `shares`, so
        much of it that its share goes out then.
        """
        take = self._take_exact if codec.is_exact else self._take_rounded
        return self.table.keys[slots], self._versions.array[slots], take(slots, codec)

    def land(self, slots, versions, positions, rows, window):
        """Ends the flight of `slots`: `rows` become the base at slots[positions], under what was stepped since.

        Args:
          versions: uint32[U], now, of all `slots`.
          window: that the rows are of now.
        """
        version_kernels.land(*self._arrays(), slots, versions, positions, rows, window)

    def accept(self, keys, known, newer, rows, window, create):
        """Takes the answer to a pull, but for rows that another answer has overtaken.

        Args:
          keys, known: the question.
          newer: the `ChangedRows` that is the answer.
          rows: float32[n, width], its rows.
          window: in which the question was asked.
          create: whether keys that have no row anywhere get an initial one here.
        """
        slots = self.table.find(keys)
        if (slots < 0).any():
            self._add(keys, slots < 0, newer.positions, create)
            slots = self.table.find(keys)
        version_kernels.accept(*self._arrays(), slots, known, newer.versions, newer.positions, rows, window)

    def make(self, keys, window):
        """-> int64[U] slots of `keys`; those that are not here get an initial row, as of `window`."""
        first = len(self)
        slots = self.table.find_or_create(keys)
        self._begin(first)
        self._stamps.array[first : len(self)] = window
        return slots

    def mark_unsent(self):
        """Marks the rows of which the service lacks something that a codec rounded away."""
        unsent = (self.table.rows != self._base.array[: len(self)]).any(axis=1)
        self._state.array[: len(self)][unsent] |= version_kernels.STEPPED

    def tidy(self, window):
        """Drops the rows not used in the last eight windows, if they are many and most. Renumbers slots.

        Rows with something to send stay until it is sent.
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
        """-> as of `Shares.of`; remembers what the rows' steps until now say of them."""
        rates, steps = self._frequency.take(slots)
        share = self._shares.by_rates(rates)
        self._shares_met.array[slots] = share
        return self._shares.of(share, steps)

    def _beside(self):
        """-> the arrays with an element a row, but for the table's own."""
        return self._base, self._state, self._versions, self._stamps, self._shares_met, *self._frequency.arrays

    def _arrays(self):
        return self.table.rows, self._base.array, self._state.array, self._versions.array, self._stamps.array

    def _add(self, keys, unknown, answered, create):
        """Makes rows of unknown keys: empty ones at the positions that are `answered`, initial ones at the others."""
        first = len(self)
        came = np.zeros(len(keys), bool)
        came[answered] = True
        there, absent = keys[unknown & came], keys[unknown & ~came]
        self.table.find_or_insert(there, np.zeros((len(there), self.table.config.width), np.float32))
        if create:
            self.table.find_or_create(absent)
        self._begin(first)

    def _begin(self, first):
        """What there is beside the rows from slot `first` on, which are new."""
        count = len(self)
        for array in self._beside():
            array.reserve(count)
            array.array[first:count] = 0
        self._base.array[first:count] = self.table.rows[first:]
        self._shares_met.array[first:count] = 1
