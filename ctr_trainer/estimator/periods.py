"""Periods, which determine when a checkpoint or an evaluation is due: after the same step on all ranks."""

import time
from collections.abc import Callable

from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.system.messages.errors import UserError


class EverySteps:
    """Due after every step whose number is a multiple of `steps`; never if that is 0."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def is_over(self) -> bool:
        """Returns whether the period is over by a clock of this rank; False if it counts steps."""
        return False

    def is_due(self, step: int) -> bool:
        """Returns whether to act after `step`. All ranks know it without asking each other."""
        return bool(self._steps) and step % self._steps == 0

    def begin(self) -> None:
        """Starts the period. Called when training begins, and after an action."""


class EveryEpochs(EverySteps):
    """Due after each step that completes an n-th epoch of the data, counted from the first epoch of the first run.

    Args:
      epochs: n, at least 1.
      length: determines when the epochs of the run end.

    Raises:
      UserError: the number of batches per epoch is not known.
    """

    def __init__(self, epochs: int, length: RunLength) -> None:
        if length.epochs is None:
            raise UserError(
                f"eval_epochs={epochs}: the input does not say how many batches an epoch has, as a tf.data.Dataset: "
                "count in steps, eval_steps"
            )
        self._epochs, self._length = epochs, length

    def is_due(self, step: int) -> bool:
        before, after = (self._length.epochs_done(at) for at in (step - 1, step))
        return after // self._epochs > before // self._epochs


class EverySeconds(EverySteps):
    """Over `seconds` after the period started. Several ranks act on it after a step at which they meet; see `Meetings`.

    Args:
      seconds: above 0.
      clock: f() -> seconds.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(0)
        self._seconds, self._clock = seconds, clock
        self._since = clock()

    def is_over(self) -> bool:
        return self._clock() - self._since >= self._seconds

    def begin(self) -> None:
        self._since = self._clock()
