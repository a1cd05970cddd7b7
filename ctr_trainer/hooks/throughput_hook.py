"""Measures a whole run."""

import time

from ctr_trainer.hooks.step_hook import StepHook


class ThroughputHook(StepHook):
    """Takes the time from the first step's start to the last one's end.

    Attributes:
      steps: done in this run.
      seconds: they took, with their syncs and checkpoints but without start-up and evaluations.
    """

    def __init__(self):
        super().__init__()
        self.steps = 0
        self.seconds = 0.0

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._began = None

    def before_run(self, run_context):
        if self._began is None:
            self._began = time.perf_counter()

    def after_step(self, run_context, run_values):
        self.steps += 1
        self.seconds = time.perf_counter() - self._began

    def exclude(self, seconds):
        """Counts out a pause since the last step."""
        self._began += seconds
