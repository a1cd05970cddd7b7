"""What is seen of a training: how fast it is, where its time goes, and what it says of that in the end."""

import numpy as np
import tensorflow as tf

from ctr_trainer.estimator.run_summary import RunSummary
from ctr_trainer.hooks.load_hook import LoadHook
from ctr_trainer.hooks.traced_phases_hook import TracedPhasesHook
from ctr_trainer.ranks import distributed


class ObservedTraining:
    """Observes a training that is ready to run; made in the training graph's scope.

    Args:
      phases: `Phases` of the training's thread.
      throughput: `ThroughputHook`, one of `hooks`.
      config: `RunConfig`.
      hooks: of the training's session.
      measuring: `MeasuringHooks`, those of `hooks` that the summary asks for their figures.
      feed: the `Feed` of the training.
      store: of `open_store`.

    Attributes:
      hooks: of the session, with those that measure its phases and its load if `phase_steps` asks for them.
    """

    def __init__(self, phases, throughput, config, hooks, measuring, feed, store):
        self._throughput, self._feed = throughput, feed
        self._summary = RunSummary(phases, feed, config, measuring, store)
        self.hooks, self._detailed = hooks, {}
        if config.phase_steps:
            gpu = bool(tf.config.list_physical_devices("GPU"))
            traced, load = TracedPhasesHook(hooks, config.phase_steps, gpu), LoadHook(store, config.phase_steps)
            self.hooks, self._detailed = [load, *traced.around], {"phases": traced, "load": load}

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
            **{name: hook.results() for name, hook in self._detailed.items()},
            **self._summary.results(throughput.steps),
        }
