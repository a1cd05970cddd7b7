"""Says when a step's session run begins and ends."""

from ctr_trainer.hooks.step_hook import StepHook


class PhaseHook(StepHook):
    """Enters `session` before each run and `hooks` after it; must be the first hook, so that those after it are timed.

    Args:
      phases: `Phases` of the training thread.
    """

    def __init__(self, phases):
        super().__init__()
        self._phases = phases

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._phases.step = self.step

    def before_run(self, run_context):
        self._phases.step = self.step + 1
        self._phases.enter("session")

    def after_micro_batch(self, run_context, run_values):
        self._phases.enter("hooks")

    def after_step(self, run_context, run_values):
        self._phases.enter("hooks")
