"""The steps of a run: its length, on which its learning rates depend, and the periods of its checkpoints."""

import dataclasses
import time
from collections.abc import Callable

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class Epochs:
    """The epochs of a rank's input, in batches of this run's batch size and number of workers.

    Attributes:
      batches: batches per epoch.
      before: batches that were read before the start of this run. If earlier runs had another batch size or number of
        workers, this is the number converted to the batch size and workers of this run.
      rows: rows per epoch over all ranks; None if unknown.
    """

    batches: int
    before: int = 0
    rows: int | None = None


@dataclasses.dataclass(frozen=True)
class RunLength:
    """The steps of a run, as far as they are known before it starts; the same on all ranks.

    Attributes:
      begin: the global step at which the run's schedule begins: `data_begin`, or the last step of the previous run if
        that run had reached its end.
      start: the global step from which this process resumes; `begin` or later.
      batches: number of batches that each rank's input has from `start` on; None if unknown.
      last: the global step to stop at; None if there is none.
      earlier_end: the end of the run that its checkpoint recorded; None if there is no checkpoint, or if the end was
        unknown.
      epochs: the `Epochs` of the input; None if unknown.
      accumulation_steps: batches per optimizer step; 1 until the `train_op` is made.
      data_begin: the global step at which the training on the current data began, from which schedules count steps.
    """

    begin: int = 0
    start: int = 0
    batches: int | None = None
    last: int | None = None
    earlier_end: int | None = None
    epochs: Epochs | None = None
    accumulation_steps: int = 1
    data_begin: int = 0

    def end(self) -> int | None:
        """Returns the global step at which the run ends; None if it is not known."""
        ends = [] if self.batches is None else [self.start - (-self.batches // self.accumulation_steps)]
        ends += [] if self.last is None else [self.last]
        return min(ends, default=None)

    @property
    def steps_per_epoch(self) -> float | None:
        """Optimizer steps per epoch; None if unknown, and not an integer if a step spans the end of an epoch."""
        return None if self.epochs is None else self.epochs.batches / self.accumulation_steps

    @property
    def first_epoch(self) -> float:
        """The global step at which the first epoch begins. `epochs` must not be None.

        It is 0, unless the run resumes with another batch size or number of workers. Then it is the step at which the
        epoch would have begun with the settings of this run.
        """
        assert self.epochs is not None
        return self.start - self.epochs.before / self.accumulation_steps

    def epochs_done(self, step: int) -> int:
        """Returns the number of epochs completed after global step `step` >= `start`. `epochs` must not be None."""
        assert self.epochs is not None
        return (self.epochs.before + (step - self.start) * self.accumulation_steps) // self.epochs.batches

    def next_epoch_end(self, step: int) -> int:
        """Returns the first global step after `step` at which another epoch is complete. `epochs` must not be None."""
        assert self.epochs is not None
        batches = (self.epochs_done(step) + 1) * self.epochs.batches - self.epochs.before
        return self.start - (-batches // self.accumulation_steps)

    def decay(self) -> dict[str, int | None]:
        """Returns a dict of `begin` and `end`, which a checkpoint records."""
        return {"begin": self.begin, "end": self.end()}


def resumed(
    checkpoint: Checkpoint | None,
    batches: int | None,
    last: int | None,
    epochs: Epochs | None = None,
    data_begin: int = 0,
) -> RunLength:
    """Returns the `RunLength` of a training that resumes from a `Checkpoint`, or starts without one."""
    if checkpoint is None:
        return RunLength(batches=batches, last=last, epochs=epochs)
    before = checkpoint.decay
    came_to_its_end = before["end"] is not None and checkpoint.step >= before["end"]
    begin = checkpoint.step if came_to_its_end else max(before["begin"] or 0, data_begin)
    return RunLength(begin, checkpoint.step, batches, last, before["end"], epochs, data_begin=data_begin)


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

    Raises UserError: the number of batches per epoch is not known.
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
