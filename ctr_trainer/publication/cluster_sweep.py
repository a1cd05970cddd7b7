"""Deletes from a cluster the rows that no reader needs, some at a time."""

import logging
import math
import time
from collections.abc import Iterator

from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.cluster import Cluster, ClusterChanged
from ctr_trainer.publication.cluster_keys import BUCKETS, bucket_of, generation_of, mark_name, rows_pattern

_log = logging.getLogger(__name__)
_STEP_SECONDS = 0.05
_NAMES_A_SCAN = 1000


class ClusterSweep:
    """Looks through all names of a cluster, as long as there may be rows of a generation that is not to stay.

    The marks of a generation go before its rows, so that a reader that still serves it notices.

    Args:
      cluster: `Cluster`.
    """

    def __init__(self, cluster: Cluster):
        self._cluster = cluster
        self._there: frozenset[int] | None = None  # No other generation has rows; None if that is not known.
        self._kept: frozenset[int] | None = None
        self._pages: Iterator[int] | None = None
        self._deleted = 0

    def note(self, generation: int) -> None:
        """Takes the number of a generation whose rows come."""
        if self._there is not None:
            self._there |= {generation}

    def is_done(self, kept: frozenset[int]) -> bool:
        """Returns whether there is nothing to delete.

        Args:
          kept: the numbers of the generations whose rows stay.
        """
        return self._there is not None and self._there <= kept

    def step(self, kept: frozenset[int]) -> None:
        """Looks at some names, for some tens of milliseconds.

        Args:
          kept: the numbers of the generations whose rows stay.
        """
        try:
            self._look(kept, None, time.monotonic() + _STEP_SECONDS)
        except ClusterChanged as error:
            _log.warning("%s: rows of other generations are looked for again: %s", self._cluster.url, error)
            self._cluster.refresh()

    def finish(self, kept: frozenset[int], newest: int | None = None) -> None:
        """Looks at all names.

        Args:
          kept: the numbers of the generations whose rows stay.
          newest: rows of later generations stay, too; None if the caller holds the fence, so that nobody else begins
            a generation.

        Raises:
          ClusterChanged: a node does not answer.
        """
        while not self.is_done(kept):
            self._look(kept, newest, math.inf)

    def _look(self, kept: frozenset[int], newest: int | None, stop: float) -> None:
        if self.is_done(kept):
            return
        if self._pages is None or self._kept != kept:
            self._pages, self._kept, self._deleted = self._delete(kept, newest), kept, 0
        while time.monotonic() < stop:
            try:
                deleted = next(self._pages, None)
            except UserError:
                self._pages = None  # It begins anew.
                raise
            if deleted is None:
                self._there, self._pages = kept, None
                if self._deleted:
                    _log.info("%s: deleted %d rows of other generations", self._cluster.url, self._deleted)
                return
            self._deleted += deleted

    def _delete(self, kept: frozenset[int], newest: int | None) -> Iterator[int]:
        """Yields for each page of names how many rows it deleted."""
        found_before, name = set(), self._cluster.name
        for node in self._cluster.primary_nodes():
            cursor = None
            while cursor != 0:
                with self._cluster.told():
                    client = self._cluster.client.get_redis_connection(node)
                    cursor, page = client.scan(cursor or 0, match=rows_pattern(name), count=_NAMES_A_SCAN)
                old = {}
                for row in page:
                    generation = generation_of(name, row)
                    if generation in kept or generation is None or (newest is not None and generation > newest):
                        continue
                    if generation not in found_before:
                        found_before.add(generation)
                        marks = [(bucket, mark_name(name, generation, bucket)) for bucket in range(BUCKETS)]
                        self._cluster.run([(bucket, ("UNLINK", mark)) for bucket, mark in marks])
                    old.setdefault(bucket_of(row), []).append(row)
                self._cluster.run([(bucket, ("UNLINK", *rows)) for bucket, rows in old.items()])
                yield sum(map(len, old.values()))
