"""Brings the worker's embedding rows and the lookup service together every N steps."""

from ctr_trainer.hooks.step_hook import StepHook


class ParameterSyncHook(StepHook):
    """Syncs after every step whose number divides by `every_n_steps`, and at the end.

    Staleness: between two syncs a worker sees its own updates at once and the other workers' not at all, so a row it
    reads lags by fewer than `every_n_steps` steps of each other worker.

    Args:
      embeddings: `Embeddings`.
      every_n_steps: at least 1; 1 is the classic parameter server.
      strict: see `EmbeddingConfig.strict_sync`.
      latency: records the duration of each sync.
      scalars: dict that gets `sync_ms` and `cache_hit_rate`.
    """

    def __init__(self, embeddings, every_n_steps, strict, latency, scalars):
        super().__init__()
        if every_n_steps < 1:
            raise ValueError(f"every_n_steps must be at least 1, not {every_n_steps}")
        self._embeddings, self._every_n_steps, self._strict = embeddings, every_n_steps, strict
        self._latency, self._scalars = latency, scalars

    def after_step(self, run_context, run_values):
        if self.step % self._every_n_steps == 0:
            self._sync()

    def end(self, session):
        self._sync()

    def _sync(self):
        before = self._latency.total_seconds
        with self._latency.measure():
            self._embeddings.sync(self._strict)
        self._scalars["sync_ms"] = 1000 * (self._latency.total_seconds - before)
        self._scalars["cache_hit_rate"] = self._embeddings.hit_rate()
