"""Logs how fast steps go by."""

import logging

from ctr_trainer.hooks.step_hook import StepHook, periodic

_log = logging.getLogger(__name__)


class StepRateHook(StepHook):
    """Logs `global_step/sec: 63.9`, over the steps since the line before.

    Args:
      every_n_steps, every_n_secs: exactly one.
    """

    def __init__(self, every_n_steps=None, every_n_secs=None):
        super().__init__()
        self._timer = periodic(every_n_steps, every_n_secs)

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._timer.update_last_triggered_step(self.step)

    def after_step(self, run_context, run_values):
        if self._timer.should_trigger_for_step(self.step):
            seconds, steps = self._timer.update_last_triggered_step(self.step)
            _log.info("global_step/sec: %.1f", steps / seconds)
