"""What is seen of a training: how fast it is, where its time goes, and what it says of that in the end."""

import numpy as np
import tensorflow as tf

from ctr_trainer import distributed
from ctr_trainer.estimator.input_ends import InputEnds
from ctr_trainer.estimator.run_summary import RunSummary
from ctr_trainer.estimator.stalls import observed_phases
from ctr_trainer.hooks.load_hook import LoadHook
from ctr_trainer.hooks.phase_hook import PhaseHook
from ctr_trainer.hooks.throughput_hook import ThroughputHook
from ctr_trainer.hooks.traced_phases_hook import TracedPhasesHook
from ctr_trainer.notices import Notices
from ctr_trainer.phases import Phases


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

    def around(self, own, measuring, others, feed, store):
        """-> the hooks of the session.

        Args:
          own: the training's own hooks, beginning with `hooks`.
          measuring: `MeasuringHooks`, those of `own` that the summary asks for their figures.
          others: more hooks.
          feed: the `Feed` of the training.
          store: of `open_store`.
        """
        self._feed, self._summary = feed, RunSummary(self.phases, feed, self._config, measuring, store)
        self._traced, self._load, every = None, None, self._config.phase_steps
        if not every:
            return [*own, *others]
        self._traced = TracedPhasesHook(every, gpu=bool(tf.config.list_physical_devices("GPU")))
        self._load = LoadHook(store, every)
        return [self._load, *self._traced.around([*own, *others])]

    def results(self):
        """-> dict, see `Estimator.train`. A collective."""
        throughput = self._throughput
        examples = int(distributed.all_sum(np.int64(self._feed.examples), "train_examples"))
        return {
            "workers": distributed.size(),
            "steps": throughput.steps,
            "global_step": throughput.step,
            "examples": examples,
            "seconds": round(throughput.seconds, 3),
            "examples_per_sec": round(examples / max(throughput.seconds, 1e-9), 1),
            "input_wait_seconds": round(self._feed.wait_seconds, 3),
            **({"phases": self._traced.results(), "load": self._load.results()} if self._traced else {}),
            **self._summary.results(throughput.steps),
        }
