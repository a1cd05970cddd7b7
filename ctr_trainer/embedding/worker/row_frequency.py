"""How often a worker steps each of its rows."""

import numpy as np

from ctr_trainer.embedding.worker import kept_row_kernels

# After this many steps the counts of a row are halved, so that p follows a row that becomes frequent, or rare.
_HALVED_STEPS = 512
# The places of three of the worker's steps: the present one, and those at which the last two windows began.
_NOW, _BEGAN, _LAST_BEGAN = range(3)


class RowFrequency:
    """Counts the steps of each row, and estimates p, the fraction of the worker's steps that step the row.

        p = (n - 1) / (T - 1)

    T is the number of the worker's steps since the beginning of the window in which the row was first stepped, and n
    the number of these steps that stepped the row. One step is left out of both counts: without it the row would not
    be here, so it tells nothing about p. If T is 1, p is 0. Over one window alone p would be rough for small n;
    docs/staleness.md says what that costs. When T passes 512, n and T are halved.

    Slots are those of the rows. Not safe to use from several threads at a time.

    Args:
      memory: `PrivateMemory`; or `SharedMemory`, and then the steps of all workers that share it are counted together.
      most_rows: the most rows that there may be.
    """

    def __init__(self, memory, most_rows):
        self._numbers = memory.counts("frequency", 3)
        self._steps = memory.array("steps", np.uint16, most_rows=most_rows)  # Since the row's change was taken.
        self._met = memory.array("met", np.float32, most_rows=most_rows)  # n, up to when it was taken.
        self._since = memory.array("since", np.uint32, most_rows=most_rows)

    @property
    def arrays(self):
        """The arrays with one element per row; the element of a new row is 0."""
        return self._steps, self._met, self._since

    def step(self, slots):
        """Counts a step of the rows at `slots`, int64[U], C-contiguous; -1 is skipped."""
        kept_row_kernels.count_step(self._steps.array, slots)
        self._numbers[_NOW] += 1

    def begin_window(self):
        """Begins a window: from here on, `take` ends the window before it."""
        self._numbers[[_LAST_BEGAN, _BEGAN]] = self._numbers[[_BEGAN, _NOW]]

    def take(self, slots):
        """Ends the window of the rows at `slots`, int64[U].

        Training goes on between `begin_window` and `take`; its steps in between count for this window.

        Returns:
          (p float32[U], steps int64[U]): p of each row, and the row's steps in the window.
        """
        rates, steps = np.empty(len(slots), np.float32), np.empty(len(slots), np.int64)
        arrays = (array.array for array in self.arrays)
        now, _, began = (int(number) for number in self._numbers)
        kept_row_kernels.take_rates(*arrays, slots, now, began, _HALVED_STEPS, rates, steps)
        return rates, steps
