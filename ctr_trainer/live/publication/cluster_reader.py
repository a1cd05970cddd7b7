"""Reads the rows of a publication from a Redis or Valkey cluster for each request, and caches hot rows."""

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.live.publication import cluster_contents, cluster_rows
from ctr_trainer.live.publication.cluster import BUCKETS, CONTROL, Cluster, ClusterChanged, control_name
from ctr_trainer.live.publication.cluster_contents import ClusterState, read_state
from ctr_trainer.live.publication.cluster_rows import REMOVED_SECONDS
from ctr_trainer.live.publication.reading import RowsAhead, RowsLost
from ctr_trainer.live.publication.records import Record
from ctr_trainer.settings.training_configs import RedisFiles
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
_TRIES, _PAUSE_SECONDS = 3, 0.1
# After a longer time without a refresh, the epochs of removed keys may have expired in the cluster.
_MOST_SECONDS_UNLOOKED = REMOVED_SECONDS / 2
_Answer = TypeVar("_Answer")


class HotRows:
    """A cache of rows of one table that were read while one record was served. Not thread-safe.

    `most_rows`: capacity of the cache; a full cache is cleared.
    """

    def __init__(self, width: int, most_rows: int) -> None:
        self._index, self._most = Index(), most_rows
        self._weights, self._found = np.empty((most_rows, width), np.float32), np.zeros(most_rows, np.bool_)

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the result of `RowReader.read` for int64[U] keys, and bool[U], whether the cache has it."""
        weights, found = np.zeros((len(keys), self._weights.shape[1]), np.float32), np.zeros(len(keys), np.bool_)
        slots = self._index.find(keys)
        there = slots >= 0
        weights[there], found[there] = self._weights[slots[there]], self._found[slots[there]]
        return weights, found, there

    def put(self, keys: np.ndarray, weights: np.ndarray, found: np.ndarray) -> None:
        """Adds results of `RowReader.read`."""
        keys, weights, found = keys[: self._most], weights[: self._most], found[: self._most]
        if len(self._index) + len(keys) > self._most:
            self._index.clear()
        slots = self._index.find_or_add(keys)
        self._weights[slots], self._found[slots] = weights, found


@dataclasses.dataclass(frozen=True)
class _Served:
    """The record that is served, and the cached rows of each table by its name."""

    state: ClusterState
    hot: dict[str, HotRows]


class ClusterReader:
    """A `RowReader` of a cluster. It reads the rows of a batch from all nodes concurrently, in one round trip.

    The cluster stores the epoch of each row, and for 10 minutes the epoch of a removed row. A read raises `RowsAhead`
    if a row is more than one epoch ahead of the served record. Each read and each refresh checks the marks of buckets.
    If a mark shows that the cluster has lost rows, reads raise `RowsLost` until all rows are published again. Rows are
    cached until the next record is served.

    `cache_rows`: most cached rows per table; 0 for no cache.

    Raises UserError: nothing is published there, or the cluster cannot be used.
    """

    is_local = False

    def __init__(self, url: str, redis: RedisFiles, cache_rows: int) -> None:
        self._cluster, self._cache_rows = Cluster(url, redis), cache_rows
        self._lock = threading.Lock()
        self.lookups = self.hits = 0
        self._ready: ClusterState | None = None
        self._lost = self._silent = ""
        self._commits, self._seen = control_name(self._cluster.name, "commits"), b"0-0"  # Before all commits.
        try:
            state = self._look(None)
            if state is None:
                raise UserError(
                    f"{url}: there is no publication yet: train with the setting publish, or publish a checkpoint"
                )
            self._served = self._cold(state)
        except BaseException:
            self.close()
            raise

    def await_newer(self, seconds: float, ended: threading.Event) -> bool:
        command = ("XREAD", "BLOCK", max(int(seconds * 1000), 1), "STREAMS", self._commits, self._seen)
        try:
            (found,) = self._cluster.run([(CONTROL, command)])
        except ClusterChanged:  # `refresh` reports it.
            return not ended.wait(seconds)
        self._seen = found[0][1][-1][0] if found else self._seen
        return found is not None

    def refresh(self) -> Record | None:
        try:
            state = self._look(self._served)
        except ClusterChanged as error:
            self._silent = str(error)
            raise
        newest = self._ready or self._served.state
        if state is not None and state.record != newest.record:
            self._ready = state
        return self._ready.record if self._ready else None

    def advance(self) -> None:
        state, self._ready = self._ready, None
        if state is not None:
            self._served = self._cold(state)
            self._lost = ""

    def read(self, table: str, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        served = self._served
        record = served.state.record
        if self._lost:
            raise RowsLost(self._lost)
        if time.monotonic() > self._looked + _MOST_SECONDS_UNLOOKED:
            raise RowsAhead(f"{self._cluster.url}: the last refresh is too long ago: call refresh before lookup")
        keys, hot = np.require(keys, np.int64, ("C", "A")), served.hot[table]
        with self._lock:
            weights, found, there = hot.find(keys)
            self.lookups, self.hits = self.lookups + len(keys), self.hits + int(there.sum())
        if not there.all():
            missing = keys[~there]
            try:
                read = self._asked(lambda: cluster_rows.read(self._cluster, record, table, missing))
            except RowsLost as error:
                if self._served is served:
                    self._lost = str(error)
                raise
            except ClusterChanged as error:
                self._silent = str(error)
                raise
            weights[~there], found[~there] = read
            with self._lock:
                hot.put(missing, *read)
        return weights, found

    @property
    def unreadable(self) -> str:
        return self._lost or self._silent

    @property
    def record(self) -> Record:
        return self._served.state.record

    def tower(self, record: Record) -> contextlib.AbstractContextManager[str]:
        return cluster_contents.fetched_tower(self._cluster, record)

    def close(self) -> None:
        self._cluster.close()

    def _look(self, served: _Served | None) -> ClusterState | None:
        """Returns the cluster's state or None. Raises RowsLost if rows of the served or of a newer record are lost."""
        state = self._asked(lambda: read_state(self._cluster))
        if served is not None:
            # One mark per node reveals a node that was flushed or restarted empty. After a loss, all marks are checked.
            buckets: Iterable[int] = range(BUCKETS) if self._lost else self._cluster.primaries.values()
            nodes = self._lost_at(served.state, buckets) if state is not None else [self._cluster.primary_of(CONTROL)]
            self._lost = str(cluster_contents.rows_lost(self._cluster, served.state.record, nodes)) if nodes else ""
            self._silent = ""  # Every node has answered.
        if state is not None and (served is None or state.record != served.state.record):
            nodes = self._lost_at(state, range(BUCKETS))
            if nodes:
                raise cluster_contents.rows_lost(self._cluster, state.record, nodes)
        elif self._lost:
            raise RowsLost(self._lost)
        self._looked = time.monotonic()
        return state

    def _lost_at(self, state: ClusterState, buckets: Iterable[int]) -> list[str]:
        return self._asked(lambda: cluster_contents.nodes_that_lost_rows(self._cluster, state.record, buckets))

    def _cold(self, state: ClusterState) -> _Served:
        configs = state.record.configs().items()
        return _Served(state, {name: HotRows(config.weights, self._cache_rows) for name, config in configs})

    def _asked(self, ask: Callable[[], _Answer]) -> _Answer:
        """Returns the result of `ask()`. Retries at most twice if a node was lost or slots have moved."""
        for _ in range(_TRIES - 1):
            try:
                return ask()
            except ClusterChanged as error:
                _log.debug("asked again: %s", error)
                time.sleep(_PAUSE_SECONDS)
                with contextlib.suppress(ClusterChanged):
                    self._cluster.refresh()
        return ask()
