"""Takes all workers back together when one has lost the lookup service."""

import numpy as np

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.periodic_hook import PeriodicHook
from ctr_trainer.hooks.periods import EverySteps
from ctr_trainer.messages.errors import ServiceLost
from ctr_trainer.ranks import distributed


class ServiceLossHook(PeriodicHook):
    """After every step whose number divides by `every_n_steps`, all ranks raise ServiceLost if one has lost it.

    Args:
      store: the `Store` of the rows.
      every_n_steps: at least 1; each time costs a reduction of one number.
      clock: see `PeriodicHook`.
    """

    phase, order = "sync", Order.LOSS

    def __init__(self, store, every_n_steps, clock=None):
        super().__init__(EverySteps(every_n_steps), clock)
        self._store = store

    def act(self, run_context):
        raise_together(self._store)


def raise_together(store):
    """Raises ServiceLost on every rank if a guarded store was lost on one. A collective if the store is guarded."""
    if not store.is_guarded:
        return
    raise_if_lost(store, distributed.all_sum(np.int32(store.lost is not None), "service_lost"))


def raise_if_lost(store, lost):
    """Raises ServiceLost if the number of ranks that have lost the store, `lost`, is not 0."""
    if lost:
        raise store.lost or ServiceLost(f"{lost} of {distributed.size()} workers lost the embedding service")
