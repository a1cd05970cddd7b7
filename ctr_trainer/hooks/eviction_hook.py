"""Tells the store how far training is, for rows that go with time."""

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.periodic_hook import PeriodicHook
from ctr_trainer.hooks.periods import EverySteps


class EvictionHook(PeriodicHook):
    """Sets the store's clock at the start and after every step whose number divides by `every_n_steps`.

    Rows that have expired by then go. Only rank 0 needs it; `lru` and `ttl_steps` are as exact as the period.

    Args:
      store: a `Store`.
      every_n_steps: at least 1.
      clock: see `PeriodicHook`.
    """

    order = Order.EVICT

    def __init__(self, store, every_n_steps, clock=None):
        super().__init__(EverySteps(every_n_steps), clock)
        self._store = store

    def after_create_session(self, session, coord):
        super().after_create_session(session, coord)
        self._store.advance(self.step)

    def act(self, run_context):
        self._store.advance(self.step)
