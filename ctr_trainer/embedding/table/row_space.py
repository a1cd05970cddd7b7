"""Sets of slots, one bit per slot of a table; the initial rows of new keys; and the interface of watchers of rows."""

from typing import Protocol

import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import kernel
from ctr_trainer.embedding.memory.growable_array import GrowableArray
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.embedding.table.table_config import TableConfig

_BITS = types.Array(types.uint8, 1, "C", readonly=True)
_BITS_OUT = types.Array(types.uint8, 1, "C")
_SLOTS_OUT = types.Array(types.int64, 1, "C")


class Bits:
    """A set of slots, one bit per slot of the table. A new slot is not in the set."""

    def __init__(self, array: GrowableArray | None = None) -> None:
        """`array` is an empty GrowableArray of uint8 for the bits; with None the set makes its own."""
        self._bits = array or GrowableArray(np.uint8)
        self._size = 0

    def reserve(self, slots: int) -> None:
        """Makes room for the slots below `slots`."""
        self._bits.reserve(_bytes(slots))
        self._size = max(self._size, slots)

    def add(self, slots: np.ndarray) -> None:
        """Adds slots, int64[U]; -1 and slots beyond the room made by `reserve` are skipped."""
        _set(self._bits.array, slots, self._size, True)

    def remove(self, slots: np.ndarray) -> None:
        """Removes slots, int64[U]."""
        _set(self._bits.array, slots, self._size, False)

    def among(self, slots: np.ndarray) -> np.ndarray:
        """Returns bool[U], whether each of the slots, int64[U], is in the set."""
        found = np.zeros(len(slots), np.bool_)
        inside = (slots >= 0) & (slots < self._size)
        own = slots[inside]
        found[inside] = self._bits.array[own >> 3] >> (own & 7) & 1
        return found

    def fill(self, slots: int) -> None:
        """Makes room for the slots below `slots`, and adds all of them."""
        self.reserve(slots)
        self._bits.array[: slots // 8] = 0xFF
        self.add(np.arange(slots // 8 * 8, slots))

    def update(self, other: "Bits") -> None:
        """Adds the slots of `other`, which must not have more room than this set."""
        self._bits.array[: _bytes(other._size)] |= other._bits.array[: _bytes(other._size)]

    def clear(self) -> None:
        self._bits.array[: _bytes(self._size)] = 0

    def become(self, other: "Bits") -> None:
        """Makes this set equal to `other`, which must have at least the room of this set."""
        self.reserve(other._size)
        self._bits.array[: _bytes(self._size)] = other._bits.array[: _bytes(self._size)]

    def next(self, start: int, most: int) -> tuple[np.ndarray, int]:
        """Returns (int64[n], up to `most` slots of the set from `start` on, ascending; the next value of `start`)."""
        out = np.empty(min(most, self._size), np.int64)
        count, after = _next(self._bits.array, start, self._size, out)
        return out[:count], after


def _bytes(slots: int) -> int:
    return (slots + 7) // 8


@kernel(types.void(_BITS_OUT, SLOTS, types.int64, types.boolean))
def _set(bits: np.ndarray, slots: np.ndarray, size: int, value: bool) -> None:
    for i in range(slots.size):
        slot = slots[i]
        if 0 <= slot < size:
            bit = np.uint8(1 << (slot & 7))
            if value:
                bits[slot >> 3] |= bit
            else:
                bits[slot >> 3] &= np.uint8(0xFF ^ bit)


@kernel(types.UniTuple(types.int64, 2)(_BITS, types.int64, types.int64, _SLOTS_OUT))
def _next(bits: np.ndarray, start: int, size: int, out: np.ndarray) -> tuple[int, int]:
    words = bits[: bits.size // 8 * 8].view(np.uint64)
    count, slot = 0, start
    while slot < size and count < out.size:
        if slot & 63 == 0 and slot >> 6 < words.size and words[slot >> 6] == 0:
            slot += 64
        elif bits[slot >> 3] == 0:
            slot = (slot >> 3 << 3) + 8
        else:
            if bits[slot >> 3] >> (slot & 7) & 1:
                out[count] = slot
                count += 1
            slot += 1
    return count, min(slot, size)


class InitialRows:
    """The initial rows of a table's new keys, a pure function of (config.seed, key)."""

    def __init__(self, config: TableConfig) -> None:
        self._form, self._seed = config.form, np.uint64(config.seed % 2**64)
        self._dims = np.array(config.dims, np.int64)
        self._scales = np.array(config.init_scales, np.float32)
        self._state = OPTIMIZERS[config.optimizer.name].initial_state(config.dims, config.optimizer)

    def of(self, keys: np.ndarray) -> np.ndarray:
        """Returns float32[U, width], the initial rows of `keys`, int64[U], contiguous, as they are stored."""
        return self._form.decode(self.stored(keys))

    def stored(self, keys: np.ndarray) -> np.ndarray:
        """Returns the initial rows of `keys`, int64[U], contiguous, in the table's form."""
        rows = np.empty((len(keys), self._form.width), np.float32)
        row_kernels.initialize(rows, keys, self._seed, self._dims, self._scales, self._state)
        return self._form.encode(rows)


class WatchedTable(Protocol):
    """The part of a `Table` that a watcher reads."""

    config: TableConfig

    @property
    def keys(self) -> np.ndarray: ...

    def take(self, slots: np.ndarray, weights_only: bool = False) -> np.ndarray: ...

    def use_of(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None: ...

    def has(self, keys: np.ndarray) -> np.ndarray: ...

    def admission_counts(self) -> tuple[np.ndarray, int] | None: ...


class RowWatcher:
    """Is told of each change of a table's rows, under the table's lock. By default it ignores them."""

    def created(self, slots: np.ndarray, size: int) -> None:
        """Records that the slots, int64[U], have new rows; the table now has `size` slots."""

    def returned(self, slots: np.ndarray) -> None:
        """Records that the rows that were just created at the slots, int64[U], have come back from disk."""

    def before_change(self, table: WatchedTable, slots: np.ndarray) -> None:
        """Records that the rows at `slots`, int64[U], are about to be trained or set; -1 is skipped."""

    def before_removal(self, table: WatchedTable, slots: np.ndarray) -> None:
        """Records that the rows at `slots`, int64[U], and their keys are about to be removed."""

    def before_leaving(self, table: WatchedTable, slots: np.ndarray) -> None:
        """Records that the rows at `slots`, int64[U], are about to go to disk."""
        self.before_removal(table, slots)

    def removed_on_disk(self, keys: np.ndarray) -> None:
        """Records that the rows of keys, int64[U], on disk are removed."""

    def before_clear(self, table: WatchedTable) -> None:
        """Records that all rows are about to be removed."""
