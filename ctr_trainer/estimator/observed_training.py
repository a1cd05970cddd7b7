"""What is seen of a training: how fast it is, where its time goes, and what it says of that in the end."""

import logging
from typing import Any

import numpy as np

from ctr_trainer.estimator.run_summary import RunSummary
from ctr_trainer.hooks.load_hook import LoadHook
from ctr_trainer.hooks.order import in_order
from ctr_trainer.ranks import distributed

_log = logging.getLogger(__name__)


class ObservedTraining:
    """Observes a training that is ready to run; made in the training graph's scope.

    Args:
      clock: `Clock` of the training's thread.
      steps: `StepClockHook`, one of `hooks`.
      config: `RunConfig`.
      hooks: of the training's session.
      measuring: `MeasuringHooks`, those of `hooks` that the summary asks for their figures.
      feed: the `Feed` of the training.
      store: of `open_store`.

    Attributes:
      hooks: of the session, in their order, with the one that measures its load if `phase_steps` asks for it.
    """

    def __init__(self, clock, steps, config, hooks, measuring, feed, store):
        self._clock, self._steps, self._feed = clock, steps, feed
        self._service = measuring.service
        self._summary = RunSummary(clock, feed, config, measuring, store)
        self._detailed = {}
        if config.phase_steps:
            self._detailed = {"phases": measuring.trace, "load": LoadHook(store, config.phase_steps)}
            hooks = [*hooks, self._detailed["load"]]
        self.hooks = in_order(hooks)

    def results(self) -> dict[str, Any]:
        """Returns a dict, see `Estimator.train`; rank 0 logs the last lines of the service. A collective."""
        examples = int(distributed.all_sum(np.int64(self._feed.examples), "train_examples"))
        # All ranks are here, so the service has answered all that the training asks of it.
        for line in self._service.lines() if self._service else ():
            _log.info(line)
        return {
            "workers": distributed.size(),
            "steps": self._steps.steps,
            "global_step": self._steps.step,
            "examples": examples,
            "seconds": round(self._steps.seconds, 3),
            "examples_per_sec": round(examples / max(self._steps.seconds, 1e-9), 1),
            "input_wait_seconds": round(self._clock.seconds["read"], 3),
            **{name: hook.results() for name, hook in self._detailed.items()},
            **self._summary.results(self._steps.steps),
        }
