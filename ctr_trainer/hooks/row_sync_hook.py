"""Brings the worker's embedding rows and the lookup service together every N steps."""

from ctr_trainer.hooks.step_hook import StepHook
from ctr_trainer.measuring.latency import Latency
from ctr_trainer.measuring.phases import Phases


class RowSyncHook(StepHook):
    """Starts a sync after every step for which `(step + offset)` divides by `every_n_steps`, and flushes at the end.

    Staleness: see `Embeddings`. The sync runs beside the steps after it; a step waits only where the next sync is due
    and the one before has not ended.

    Args:
      embeddings: `Embeddings`.
      every_n_steps: at least 1; 1 is the classic parameter server.
      wait: `Latency` that records for how long each sync held up the training thread; None where nobody looks at it.
      scalars: dict that gets `sync_ms` (of the sync before), `sync_wait_ms` and `cache_hit_rate`; None for no dict.
      offset: 0 to `every_n_steps` - 1, another one on each rank, so that not all come to the service at once.
      phases: `Phases` of the training thread; None where nobody looks at them.
    """

    phase = "sync"

    def __init__(self, embeddings, every_n_steps, wait=None, scalars=None, offset=0, phases=None):
        super().__init__()
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, not {every_n_steps}")
        if not 0 <= offset < every_n_steps:
            raise ValueError(f"offset must be from 0 to {every_n_steps - 1}, not {offset}")
        self._embeddings, self._every_n_steps, self._offset = embeddings, every_n_steps, offset
        self._wait = wait or Latency("OpsSyncWait")
        self._scalars = {} if scalars is None else scalars
        self._phases = phases or Phases()

    def after_step(self, run_context, run_values):
        if (self.step + self._offset) % self._every_n_steps == 0:
            before = self._wait.total_seconds
            with self._phases.within("sync"), self._wait.measure():
                self._embeddings.sync()
            self._scalars["sync_ms"] = 1000 * self._embeddings.sync_seconds
            self._scalars["sync_wait_ms"] = 1000 * (self._wait.total_seconds - before)
            self._scalars["cache_hit_rate"] = self._embeddings.hit_rate()

    def end(self, session):
        with self._phases.within("sync"):
            self._embeddings.flush()
