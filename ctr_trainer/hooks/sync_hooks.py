"""Hooks that keep the ranks and the embedding service together: dense averages, row syncs, losses, expired rows."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ctr_trainer.hooks.periods import EverySteps
from ctr_trainer.hooks.step_hook import Order, PeriodicHook
from ctr_trainer.measuring.clock import Clock
from ctr_trainer.messages.errors import ServiceLost
from ctr_trainer.ranks import distributed


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


class RowSyncHook(PeriodicHook):
    """Starts a sync after every step for which `(step + offset)` divides by `every_n_steps`, and flushes at the end.

    Staleness: see `Embeddings`. The sync runs beside the steps after it; a step waits only where the next sync is due
    and the one before has not ended.

    Args:
      embeddings: `Embeddings`.
      every_n_steps: at least 1; 1 is the classic parameter server.
      offset: 0 to `every_n_steps` - 1, another one on each rank, so that not all come to the service at once.
      clock: see `PeriodicHook`.

    Attributes:
      wait_ms: how long the last sync held up the training thread; None before the first.
    """

    phase, order = "sync", Order.SYNC

    def __init__(self, embeddings, every_n_steps, offset=0, clock=None):
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, not {every_n_steps}")
        if not 0 <= offset < every_n_steps:
            raise ValueError(f"offset must be from 0 to {every_n_steps - 1}, not {offset}")
        super().__init__(EverySteps(every_n_steps, offset), clock)
        self._embeddings, self.wait_ms = embeddings, None

    def after_step(self, run_context, run_values):
        self._embeddings.look()
        super().after_step(run_context, run_values)

    def act(self, run_context):
        self._embeddings.sync()
        self.wait_ms = 1000 * self._clock.lasted()

    def end(self, session):
        with self._clock.within(self.phase):
            self._embeddings.flush()


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
