"""When a checkpoint or an evaluation is due: after the same step on all ranks."""

import time

from ctr_trainer.messages.errors import UserError


class EverySteps:
    """After every step whose number divides by n.

    Args:
      steps: n; 0 for never.
      offset: the step's number and this together are to divide by n.
    """

    def __init__(self, steps, offset=0):
        self._steps, self._offset = steps, offset

    def is_due(self, step):
        """-> whether to act after this step, which was just done."""
        return bool(self._steps) and (step + self._offset) % self._steps == 0

    def begin(self):
        """Counts from now on: training begins, or has acted."""


class EveryEpochs(EverySteps):
    """After each step by which an n-th epoch of the data is over, counted from the very first one.

    Args:
      epochs: n, at least 1.
      length: `RunLength`.
      accumulation_steps: batches of an optimizer step.
      flags: (of epochs, of steps), as the error names them.

    Raises:
      UserError: the input does not know its epochs.
    """

    def __init__(self, epochs, length, accumulation_steps, flags):
        if length.epochs is None:
            raise UserError(
                f"--{flags[0]}={epochs}: the input does not say how many batches an epoch has, as a tf.data.Dataset: "
                f"count in steps, --{flags[1]}"
            )
        self._epochs, self._length, self._accumulation_steps = epochs, length, accumulation_steps

    def is_due(self, step):
        """As `EverySteps`."""
        before, after = (self._length.epochs_done(at, self._accumulation_steps) for at in (step - 1, step))
        return after // self._epochs > before // self._epochs


class EverySeconds(EverySteps):
    """After the first step that ends so many seconds after the last time; for one worker.

    Args:
      seconds: above 0.
      clock: f() -> seconds.
    """

    def __init__(self, seconds, clock=time.monotonic):
        self._seconds, self._clock = seconds, clock
        self._since = clock()

    def is_due(self, step):
        """As `EverySteps`."""
        return self._clock() - self._since >= self._seconds

    def begin(self):
        """As `EverySteps`."""
        self._since = self._clock()


class SecondsOfChief(EverySeconds):
    """The same for several workers: by rank 0's clock, after the same step on all ranks, and without a wait for it.

    Rank 0's wish travels with the sum that the ranks make of a line of the log, see `MergedLines`. All know that sum
    when the next line is due, and act after the step that follows it: up to two lines after the time was over.

    Args:
      seconds, clock: see `EverySeconds`.
      is_chief: whether this is rank 0.
    """

    def __init__(self, seconds, is_chief, clock=time.monotonic):
        super().__init__(seconds, clock)
        self._is_chief, self._asked, self._granted = is_chief, False, False

    def ask(self):
        """-> 1.0 where this rank wishes to act and has not said so yet, else 0.0."""
        if not self._is_chief or self._asked or not super().is_due(None):
            return 0.0
        self._asked = True
        return 1.0

    def grant(self):
        """All ranks know of the wish: called after the same step on all of them."""
        self._granted = True

    def is_due(self, step):
        """As `EverySteps`."""
        return self._granted

    def begin(self):
        """As `EverySteps`."""
        super().begin()
        self._asked = self._granted = False
