"""When a checkpoint or an evaluation is due: after the same step on all ranks."""

import contextlib
import time

import numpy as np

from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes.background import Background

_ASK_SECONDS, _MOST_STEPS, _CLOSE_SECONDS = 0.5, 1000, 2.0


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

    def close(self):
        """Ends what is under way, also after an error."""


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

    Rank 0's wish is added up over the ranks in a thread beside some steps. All know the sum when they ask again, and
    act after that step. They ask about twice a second: rank 0 says how many steps that is. So they act up to a second,
    or two steps if these are longer, after the time was over.

    Args:
      seconds, clock: see `EverySeconds`.
      is_chief: whether this is rank 0.
      all_sum: f(float64[2]) -> the sum of all ranks' arrays; called in the thread, always by one at a time.
      waiting: f(what) -> context manager around a wait for the other ranks.
    """

    def __init__(self, seconds, is_chief, all_sum, waiting, clock=time.monotonic):
        super().__init__(seconds, clock)
        self._is_chief, self._all_sum, self._waiting = is_chief, all_sum, waiting
        self._background = Background("asking rank 0 whether a checkpoint is due")
        self._told = self._asked_at = None
        self._next, self._last = 0, 0

    def is_due(self, step):
        """As `EverySteps`; call it after each step, on all ranks."""
        if step < self._next:
            return False
        wishes, steps = self._answer()
        self._ask(step, wishes)
        self._last, self._next = step, step + int(steps)
        return bool(wishes)

    def close(self):
        """As `EverySteps`: what the other ranks have no part in any more is left alone after two seconds."""
        with contextlib.suppress(UserError):
            self._background.close(_CLOSE_SECONDS)

    def _answer(self):
        """-> (whether rank 0 wished to act, how many steps later to ask again), the same on all ranks."""
        if self._told is None:
            return False, 1
        with self._waiting("the other ranks, to know whether a checkpoint is due"):
            self._background.wait()
        return self._told

    def _ask(self, step, has_wished):
        now, told = self._clock(), np.zeros(2)
        if self._is_chief:
            seconds = now - self._asked_at if self._asked_at is not None else 0.0
            steps = (step - self._last) * _ASK_SECONDS / seconds if seconds else 1
            # Where it has wished, all act now, and the time counts from then on.
            told[:] = super().is_due(step) and not has_wished, min(max(round(steps), 1), _MOST_STEPS)
        self._asked_at, self._told = now, told

        def add_up():
            self._told = self._all_sum(told)

        self._background.start(add_up)
