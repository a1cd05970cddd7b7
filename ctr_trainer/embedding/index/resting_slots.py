"""Slots whose keys were removed while another worker may still train their rows."""

import numpy as np

_COUNT, _CLOCK, _MEMBERS = range(3)


class RestingSlots:
    """The slots of removed keys, from the removal until no worker can use them any more.

    A worker uses slots from its lookup to its step, and its next lookup says that it is done with them. So a slot has
    rested when each worker has begun a lookup since the slot's key was removed. Until then the slot has no key, and a
    step skips it; if it had a new key at once, the step would train that key's row.

    Caveat: use it under the table's lock, except `begin_lookup`.

    Args:
      memory: `SharedMemory` of the table.
      member: this worker's number among those that share the memory, from 0.
      members: how many share it.
    """

    def __init__(self, memory, member, members):
        self._slots, self._since = memory.array("resting", np.int64), memory.array("resting_since", np.int64)
        self._numbers, self._memory = memory.counts("resting", _MEMBERS + members), memory
        self._own = _MEMBERS + member

    def __len__(self):
        return int(self._numbers[_COUNT])

    def begin_lookup(self):
        """Says that this worker is done with the slots of its lookups before."""
        self._numbers[self._own] = self._numbers[_CLOCK]

    def add(self, slots):
        """Has slots, int64[U], rest from now on."""
        count = len(self)
        for array, values in ((self._slots, slots), (self._since, self._numbers[_CLOCK])):
            array.reserve(count + len(slots))
            array.array[count : count + len(slots)] = values
        self._numbers[_COUNT] += len(slots)
        self._numbers[_CLOCK] += 1

    def take_rested(self):
        """-> int64[n], the slots that have rested; they are no longer here."""
        count, done = len(self), self._numbers[_MEMBERS:].min()
        rested = int(np.searchsorted(self._since.array[:count], done))
        slots = self._slots.array[:rested].copy()
        if rested:
            for array in (self._slots.array, self._since.array):
                array[: count - rested] = array[rested:count].copy()
            self._numbers[_COUNT] -= rested
        return slots

    def clear(self):
        """Forgets all slots."""
        self._numbers[_COUNT] = 0
