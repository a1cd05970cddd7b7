"""Averages the dense variables every N steps, for local SGD."""

from collections.abc import Callable

import tensorflow as tf

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.periodic_hook import PeriodicHook
from ctr_trainer.hooks.periods import EverySteps
from ctr_trainer.measuring.clock import Clock


class DenseSyncHook(PeriodicHook):
    """Averages after every step whose number divides by `every_n_steps`, on all ranks at the same one.

    A checkpoint, and so the end of training, averages by itself first.

    Args:
      settle: f(session) that averages; a collective.
      every_n_steps: at least 1.
      clock: see `PeriodicHook`.
    """

    phase, order = "dense_sync", Order.AVERAGE

    def __init__(
        self, settle: Callable[[tf.compat.v1.Session], None], every_n_steps: int, clock: Clock | None = None
    ) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, not {every_n_steps}")
        super().__init__(EverySteps(every_n_steps), clock)
        self._settle = settle

    def act(self, run_context: tf.compat.v1.train.SessionRunContext) -> None:
        self._settle(run_context.session)
