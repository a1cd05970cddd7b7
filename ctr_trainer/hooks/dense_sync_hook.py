"""Averages the dense variables every N steps, for local SGD."""

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.periodic_hook import PeriodicHook
from ctr_trainer.hooks.periods import EverySteps


class DenseSyncHook(PeriodicHook):
    """Averages after every step whose number divides by `every_n_steps`, on all ranks at the same one.

    Checkpoints average first by themselves, and so does the end of training.

    Args:
      prepare: f(session), called before the first step.
      settle: f(session) that averages; a collective.
      every_n_steps: at least 1.
      clock: see `PeriodicHook`.
    """

    phase, order = "dense_sync", Order.AVERAGE

    def __init__(self, prepare, settle, every_n_steps, clock=None):
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, not {every_n_steps}")
        super().__init__(EverySteps(every_n_steps), clock)
        self._prepare, self._settle = prepare, settle

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._prepare(session)

    def act(self, run_context):
        self._settle(run_context.session)
