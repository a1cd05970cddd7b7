"""Tells shards that the holder of a lease lives."""

import threading

from ctr_trainer.embedding.service.lease import LEASE_SECONDS


class Renewal:
    """Renews a lease from a thread, whatever the training does, until `close`.

    Args:
      shards: sequence of `Shard`, connected.
    """

    def __init__(self, shards):
        self._shards = shards
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="lease of the embedding service", daemon=True)
        self._thread.start()

    def close(self):
        """Ends the renewals; returns once none is under way."""
        self._end.set()
        self._thread.join()

    def _work(self):
        while not self._end.wait(LEASE_SECONDS / 10):
            for shard in self._shards:
                shard.renew()
