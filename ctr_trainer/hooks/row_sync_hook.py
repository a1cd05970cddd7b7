"""Brings the worker's embedding rows and the lookup service together every N steps."""

from ctr_trainer.hooks.order import Order
from ctr_trainer.hooks.periodic_hook import PeriodicHook
from ctr_trainer.hooks.periods import EverySteps


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
