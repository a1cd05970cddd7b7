"""Watches that every step comes to its end."""

from ctr_trainer import distributed
from ctr_trainer.hooks.step_hook import StepHook


class WatchdogHook(StepHook):
    """Has the watchdog of `distributed` end the job where a step, with its gradient exchange, takes too long.

    It must be the last hook, so that what it watches is the session's run alone.
    """

    def before_run(self, run_context):
        self._token = distributed.watchdog().begin(f"step {self.step + 1} and its gradient exchange")

    def after_step(self, run_context, run_values):
        distributed.watchdog().end(self._token)
