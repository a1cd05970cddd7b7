"""The base of the hooks that act after some steps."""

from ctr_trainer.hooks.step_hook import StepHook
from ctr_trainer.measuring.clock import Clock


class PeriodicHook(StepHook):
    """Acts after each step that its period says; what that takes is of the hook's phase.

    Subclasses define `act(run_context)`.

    Args:
      period: `EverySteps` or another of `periods`.
      clock: `Clock` of the thread of the steps; None where nobody looks at it.
    """

    def __init__(self, period, clock=None):
        super().__init__()
        self._period, self._clock = period, clock or Clock()

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._period.begin()

    def after_step(self, run_context, run_values):
        if self._period.is_due(self.step):
            with self._clock.within(self.phase):
                self.act(run_context)

    def act(self, run_context):
        """What is to be done after a step that is due."""
        raise NotImplementedError(f"{type(self).__name__} must define act")
