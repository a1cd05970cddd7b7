"""The keys that were removed from a table since its last snapshot."""

import numpy as np


class RemovedKeys:
    """A list of keys that grows with each removal, and that a snapshot takes away without a copy.

    Two arrays take turns: one grows while a snapshot reads the other.

    Args:
      memory: where the keys lie, see `Table`.
    """

    def __init__(self, memory):
        self._arrays, self._memory = [memory.array(f"removed{turn}", np.int64) for turn in range(2)], memory
        self._numbers = memory.counts("removed", 3)  # How many keys each array has; which of the two grows.

    def add(self, keys):
        """Appends keys, int64[n]."""
        turn = self._numbers[2]
        count = self._numbers[turn]
        array = self._arrays[turn]
        array.reserve(count + len(keys))
        array.array[count : count + len(keys)] = keys
        self._numbers[turn] += len(keys)

    def take(self):
        """-> int64[n], the keys since the last `take`, in the order of their removal; valid until the next `take`."""
        turn = self._numbers[2]
        other = 1 - turn
        self._arrays[other].release(0, self._numbers[other], self._memory.free)
        self._numbers[[other, 2]] = 0, other
        return self._arrays[turn].array[: self._numbers[turn]]

    def clear(self):
        """Forgets all keys."""
        self._numbers[self._numbers[2]] = 0
