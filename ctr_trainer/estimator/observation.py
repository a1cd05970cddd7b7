"""What is seen of a training from before its graph is made."""

from ctr_trainer.estimator.input_ends import InputEnds
from ctr_trainer.estimator.observed_training import ObservedTraining
from ctr_trainer.estimator.stalls import observed_phases
from ctr_trainer.hooks.phase_hook import PhaseHook
from ctr_trainer.hooks.throughput_hook import ThroughputHook
from ctr_trainer.measuring.phases import Phases
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.notices import Notices


class Observation:
    """Observes one training, and changes nothing of it.

    Args:
      config: `RunConfig`.
      model_dir: of the training.

    Attributes:
      phases: `Phases` of the training's thread.
      input_ends: `InputEnds` of this rank.
      hooks: those that come before all others.
    """

    def __init__(self, config, model_dir):
        self._config, self._model_dir = config, model_dir
        self.phases, self._throughput = Phases(), ThroughputHook()
        self.input_ends = InputEnds(Notices.of_this_job(), distributed.rank(), self.phases)
        self.hooks = [PhaseHook(self.phases), self._throughput]

    @property
    def step(self):
        """The global step that was done last."""
        return self._throughput.step

    def by_others(self):
        """-> context manager within which the other ranks can tell where this one is; see `stalls`."""
        return observed_phases(self.phases, self._model_dir, self.input_ends)

    def of_training(self, hooks, measuring, feed, store):
        """-> `ObservedTraining`, whose arguments these are; to be made in the training graph's scope."""
        return ObservedTraining(self.phases, self._throughput, self._config, hooks, measuring, feed, store)
