"""What is seen of a training from before its graph is made."""

from ctr_trainer.estimator.input_ends import InputEnds
from ctr_trainer.estimator.observed_training import ObservedTraining
from ctr_trainer.estimator.stalls import observed_phases
from ctr_trainer.hooks.step_clock_hooks import SessionClockHook, StepClockHook
from ctr_trainer.measuring.clock import Clock
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.notices import Notices


class Observation:
    """Observes one training, and changes nothing of it.

    Args:
      config: `RunConfig`.
      model_dir: of the training.

    Attributes:
      clock: `Clock` of the training's thread.
      input_ends: `InputEnds` of this rank.
    """

    def __init__(self, config, model_dir):
        self._config, self._model_dir = config, model_dir
        self.clock = Clock()
        self._steps = StepClockHook(self.clock)
        self.input_ends = InputEnds(Notices.of_this_job(), distributed.rank(), self.clock)

    @property
    def step(self):
        """The global step that was done last."""
        return self._steps.step

    def by_others(self):
        """-> context manager within which the other ranks can tell where this one is; see `stalls`."""
        return observed_phases(self.clock, self._model_dir, self.input_ends)

    def of_training(self, hooks, measuring, feed, store):
        """-> `ObservedTraining`, whose arguments these are; to be made in the training graph's scope."""
        hooks = [self._steps, *hooks, SessionClockHook(self.clock)]
        return ObservedTraining(self.clock, self._steps, self._config, hooks, measuring, feed, store)
