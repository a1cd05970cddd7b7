"""One bit for each slot of a table."""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.memory.growable_array import GrowableArray

_BITS = types.Array(types.uint8, 1, "C", readonly=True)
_BITS_OUT = types.Array(types.uint8, 1, "C")
_SLOTS_OUT = types.Array(types.int64, 1, "C")


class Bits:
    """A set of slots, one bit per slot of the table. A new slot is not in the set."""

    def __init__(self, array: GrowableArray | None = None) -> None:
        """
        Args:
          array: an empty GrowableArray of uint8 for the bits; None to make one.
        """
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
        """Takes slots, int64[U], out."""
        _set(self._bits.array, slots, self._size, False)

    def among(self, slots: np.ndarray) -> np.ndarray:
        """Returns bool[U]: whether each of the slots, int64[U], is in the set."""
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
        """Adds the slots of `other`, `Bits` with at most this set's room."""
        self._bits.array[: _bytes(other._size)] |= other._bits.array[: _bytes(other._size)]

    def clear(self) -> None:
        """Takes every slot out."""
        self._bits.array[: _bytes(self._size)] = 0
        self._size = 0

    def copy(self) -> "Bits":
        """Returns a copy with the same slots."""
        other = Bits()
        other.reserve(self._size)
        other._bits.array[: _bytes(self._size)] = self._bits.array[: _bytes(self._size)]
        return other

    def become(self, other: "Bits") -> None:
        """Makes this the set of the same slots as `other`, `Bits` with at least this set's room."""
        self.reserve(other._size)
        self._bits.array[: _bytes(self._size)] = other._bits.array[: _bytes(self._size)]

    def slots(self) -> np.ndarray:
        """Returns int64[n], all slots in the set, ascending."""
        return self.pop(0, self._size)[0] if self._size else np.empty(0, np.int64)

    def pop(self, start: int, most: int, remove: bool = False) -> tuple[np.ndarray, int]:
        """Reads slots of the set, ascending.

        Args:
          start: the slot to start from.
          most: the most slots to read.
          remove: whether the slots are taken out of the set.

        Returns:
          (int64[n] slots, the slot to start from next)
        """
        out = np.empty(min(most, self._size), np.int64)
        count, after = _next(self._bits.array, start, self._size, out)
        if remove:
            self.remove(out[:count])
        return out[:count], after


def _bytes(slots: int) -> int:
    return (slots + 7) // 8


@numba.njit(types.void(_BITS_OUT, SLOTS, types.int64, types.boolean), nogil=True, cache=True)
def _set(bits: np.ndarray, slots: np.ndarray, size: int, value: bool) -> None:
    for i in range(slots.size):
        slot = slots[i]
        if 0 <= slot < size:
            bit = np.uint8(1 << (slot & 7))
            if value:
                bits[slot >> 3] |= bit
            else:
                bits[slot >> 3] &= np.uint8(0xFF ^ bit)


@numba.njit(types.UniTuple(types.int64, 2)(_BITS, types.int64, types.int64, _SLOTS_OUT), nogil=True, cache=True)
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
