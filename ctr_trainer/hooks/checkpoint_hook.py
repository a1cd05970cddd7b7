"""Saves both halves of the model while it trains."""

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.periodic_hook import PeriodicHook


class CheckpointHook(PeriodicHook):
    """Saves after each step that the period says, and at the end.

    Every rank takes part, since all of them must have handed their updates to the service first.

    Args:
      saving: `Saving`, or another object with its `begin`, `look` and `__call__`.
      period, clock: see `PeriodicHook`.
    """

    phase, order = "checkpoint", Order.SAVE

    def __init__(self, saving, period, clock=None):
        super().__init__(period, clock)
        self._saving, self._start = saving, None

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._start = self.step

    def after_step(self, run_context, run_values):
        self._saving.look()
        super().after_step(run_context, run_values)

    def act(self, run_context):
        self._saving.begin(run_context.session, self.step)
        self._period.begin()

    def end(self, session):
        with self._clock.within(self.phase):
            if self.step != self._start:
                self._saving(session, self.step)
