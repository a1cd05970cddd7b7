"""How often a worker meets each of the rows that it has."""

import numpy as np

from ctr_trainer.embedding.store import version_kernels

# So many steps back counts half, so that a row which becomes frequent, or rare, is taken for what it is.
_HALVED_STEPS = 512
# The step now, and the steps at which the last window and the one before it began.
_NOW, _BEGAN, _LAST_BEGAN = range(3)


class RowFrequency:
    """Counts the steps of each row, within the window and over all of them:

        p = (n - 1) / (T - 1)

    of a row that was stepped in n of the T steps since the window began that first met it. That one step met it is why
    it is there, and says nothing of p; with T = 1 nothing does, and p is 0. Over one window alone p would be as rough
    as n is small: see docs/staleness.md for what that costs. When T passes 512, n and T are halved.

    Slots are those of the rows. Not safe to use from several threads at a time.

    Args:
      memory: `PrivateMemory`, or `SharedMemory`, whose workers' steps are then counted together.
      most_rows: how many rows there may be.
    """

    def __init__(self, memory, most_rows):
        self._numbers = memory.counts("frequency", 3)
        self._steps = memory.array("steps", np.uint16, most_rows=most_rows)  # Since the row's change was taken.
        self._met = memory.array("met", np.float32, most_rows=most_rows)  # n, up to when it was taken.
        self._since = memory.array("since", np.uint32, most_rows=most_rows)

    @property
    def arrays(self):
        """Those with an element a row, which is 0 of a new one."""
        return self._steps, self._met, self._since

    def step(self, slots):
        """A step of the rows at `slots` int64[U], C-contiguous; -1 is skipped."""
        version_kernels.count_step(self._steps.array, slots)
        self._numbers[_NOW] += 1

    def begin_window(self):
        """From here on, `take` ends the window that ran until now."""
        self._numbers[[_LAST_BEGAN, _BEGAN]] = self._numbers[[_BEGAN, _NOW]]

    def take(self, slots):
        """Ends the window of the rows at `slots`. -> (p float32[U], their steps int64[U] in it)

        Training goes on between `begin_window` and `take`: what it steps meanwhile counts.
        """
        rates, steps = np.empty(len(slots), np.float32), np.empty(len(slots), np.int64)
        arrays = (array.array for array in self.arrays)
        now, _, began = (int(number) for number in self._numbers)
        version_kernels.take_rates(*arrays, slots, now, began, _HALVED_STEPS, rates, steps)
        return rates, steps
