"""Hooks that keep the ranks and the embedding service in sync, detect a lost service, and remove expired rows."""

from collections.abc import Callable

import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.store.store import Store
from ctr_trainer.estimator.embeddings import Embeddings
from ctr_trainer.estimator.hooks.periods import EverySteps, EveryStepsOrSeconds
from ctr_trainer.estimator.hooks.step_hook import Order, PeriodicHook
from ctr_trainer.system.measuring.clock import Clock


class DenseSyncHook(PeriodicHook):
    """Averages the dense variables of all ranks after every step that is a multiple of `every_n_steps`.

    They are also averaged before each checkpoint, and therefore at the end of training.

    Args:
      settle: f(session) that averages the variables; a collective.
    """

    phase, order = "dense_sync", Order.AVERAGE

    def __init__(self, settle: Callable[[tf1.Session], None], every_n_steps: int, clock: Clock | None = None) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, not {every_n_steps}")
        super().__init__(EverySteps(every_n_steps), clock)
        self._settle = settle

    def act(self, run_context: tf1.train.SessionRunContext) -> None:
        self._settle(run_context.session)


class RowSyncHook(PeriodicHook):
    """Starts a sync after every step for which `step + offset` is a multiple of `every_n_steps`; flushes at the end.

    With `every_n_secs`, it also starts a sync after the first step that ends at least this many seconds after the
    previous one.

    Staleness: see `Embeddings`. The sync runs in the background; a step waits only if the next sync is due and the
    previous one has not ended.

    Args:
      every_n_steps: at least 1; 1 corresponds to the classic parameter server.
      offset: 0 to `every_n_steps` - 1, different on each rank, so that the ranks do not all sync at the same time.
      every_n_secs: above 0; None for no limit. Must be None if a sync is a collective.

    Attributes:
      wait_ms: milliseconds for which the last sync blocked the training thread; None before the first sync.
    """

    phase, order = "sync", Order.SYNC

    def __init__(
        self,
        embeddings: Embeddings,
        every_n_steps: int,
        offset: int = 0,
        clock: Clock | None = None,
        every_n_secs: float | None = None,
    ) -> None:
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, not {every_n_steps}")
        if not 0 <= offset < every_n_steps:
            raise ValueError(f"offset must be from 0 to {every_n_steps - 1}, not {offset}")
        period = EverySteps(every_n_steps, offset)
        if every_n_secs is not None:
            period = EveryStepsOrSeconds(every_n_steps, offset, every_n_secs)
        super().__init__(period, clock)
        self._embeddings = embeddings
        self.wait_ms: float | None = None

    def after_step(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self._embeddings.look()
        super().after_step(run_context, run_values)

    def act(self, run_context: tf1.train.SessionRunContext) -> None:
        self._embeddings.sync()
        self._period.begin()
        self.wait_ms = 1000 * self._clock.lasted()

    def end(self, session: tf1.Session) -> None:
        with self._clock.within(self.phase):
            self._embeddings.flush()


class EvictionHook(PeriodicHook):
    """Sets the store's clock at the start and after every step that is a multiple of `every_n_steps`.

    The store then removes the expired rows. Only rank 0 needs this hook. `lru` and `ttl_steps` are only as exact as the
    period.
    """

    order = Order.EVICT

    def __init__(self, store: Store, every_n_steps: int, clock: Clock | None = None) -> None:
        super().__init__(EverySteps(every_n_steps), clock)
        self._store = store

    def after_create_session(self, session: tf1.Session, coord: tf1.train.Coordinator) -> None:
        super().after_create_session(session, coord)
        self._store.advance(self.step)

    def act(self, run_context: tf1.train.SessionRunContext) -> None:
        self._store.advance(self.step)
