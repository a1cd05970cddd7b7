"""When the embedding rows of a training are synced with the service, and when expired rows are removed."""

import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.store.store import Store
from ctr_trainer.estimator.embeddings import Embeddings
from ctr_trainer.estimator.periods import EverySeconds, EverySteps
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import Clock


class RowSchedule:
    """Syncs this worker's rows with the service every `sync_steps` steps, and removes expired rows.

    The syncs of the ranks are spread over `sync_steps`, unless a sync is a collective. With a publication, a worker
    also syncs when half of the seconds between two publications have passed, because a publication reads the service.
    Expired rows are removed after every `sync_steps` steps, so `lru` and `ttl_steps` are only as exact as that.

    Staleness: see `Embeddings`. The sync runs in the background; a step waits only if the next sync is due and the
    previous one has not ended.

    Args:
      embeddings: the rows; None for a model without rows.
      learning_rate: scalar tensor, the learning rate of the rows; None for a model without rows.

    Attributes:
      wait_ms: milliseconds for which the last sync blocked the training thread; None before the first sync.
    """

    def __init__(
        self, embeddings: Embeddings | None, store: Store, config: RunConfig, learning_rate: tf.Tensor | None
    ) -> None:
        self._embeddings, self._store, self._learning_rate = embeddings, store, learning_rate
        self.wait_ms: float | None = None
        if embeddings is None:
            return
        steps, rank, size = config.embedding.sync_steps, distributed.rank(), distributed.size()
        self._syncs = EverySteps(steps, 0 if embeddings.syncs.is_strict else rank * steps // size)
        self._evicts = EverySteps(steps)
        is_evicting = rank == 0 and any(rows.config.evicts for rows in embeddings.rows.values())
        self._evicting = store if is_evicting else None
        by_clock = config.publish.to and not (embeddings.syncs.is_strict or config.deterministic)
        self._seconds = EverySeconds(config.publish.secs / 2) if by_clock else None

    def begin(self, session: tf1.Session, step: int) -> None:
        """Prepares the rows for the first step."""
        if self._embeddings is None:
            return
        if self._embeddings.moves_all_rows:
            self._embeddings.expect_learning_rate(float(session.run(self._learning_rate)))
        if self._evicting:
            self._evicting.advance(step)

    def sync_if_due(self, step: int, clock: Clock) -> None:
        """Starts a sync, or removes expired rows, if either is due after `step`. Raises the error of a failed sync."""
        if self._embeddings is None:
            return
        self._embeddings.look()
        if self._syncs.is_due(step) or (self._seconds and self._seconds.is_over()):
            with clock.within("sync"):
                self._embeddings.syncs.sync()
                self.wait_ms = 1000 * clock.lasted()
            if self._seconds:
                self._seconds.begin()
        if self._evicting and self._evicts.is_due(step):
            self._evicting.advance(step)
