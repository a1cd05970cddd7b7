"""Deletes the rows of older generations from a cluster, some at a time."""

import logging
import time

from ctr_trainer.publication.cluster import ClusterChanged
from ctr_trainer.publication.cluster_keys import generation_of, rows_pattern

_log = logging.getLogger(__name__)
_STEP_SECONDS = 0.05
_NAMES_A_SCAN = 1000


class ClusterSweep:
    """Looks once through the names of a cluster when a generation has been the current one for a while.

    Args:
      cluster: `Cluster`.
      grace_secs: for how long.
    """

    def __init__(self, cluster, grace_secs):
        self._cluster, self._grace = cluster, grace_secs
        self._swept, self._pages = None, None

    def is_done(self, state):
        """-> whether there is nothing to look for, or not yet.

        Args:
          state: `ClusterState`.
        """
        return self._swept == state.record.generation or time.time() < state.since + self._grace

    def step(self, state):
        """Looks at some names, for some tens of milliseconds.

        Args:
          state: `ClusterState`.
        """
        if self.is_done(state):
            return
        generation = state.record.generation
        self._pages = self._pages or self._delete(generation)
        stop = time.monotonic() + _STEP_SECONDS
        try:
            while time.monotonic() < stop:
                deleted = next(self._pages, None)
                if deleted is not None:
                    self._swept, self._pages = generation, None
                    if deleted:
                        _log.info("%s: deleted %d rows of older generations", self._cluster.url, deleted)
                    return
        except ClusterChanged as error:
            _log.warning("%s: rows of older generations are looked for again: %s", self._cluster.url, error)
            self._pages = None
            self._cluster.refresh()

    def _delete(self, generation):
        """Yields None for each page of names, and last how many rows it deleted."""
        deleted, name = 0, self._cluster.name
        for node in self._cluster.primary_nodes():
            cursor = None
            while cursor != 0:
                with self._cluster.told():
                    client = self._cluster.client.get_redis_connection(node)
                    cursor, found = client.scan(cursor or 0, match=rows_pattern(name), count=_NAMES_A_SCAN)
                old = {}
                for row in found:
                    if generation_of(name, row) not in (None, generation):
                        old.setdefault(int(row[1:5], 16), []).append(row)
                self._cluster.run([(bucket, ("UNLINK", *rows)) for bucket, rows in old.items()])
                deleted += sum(map(len, old.values()))
                yield None
        yield deleted
