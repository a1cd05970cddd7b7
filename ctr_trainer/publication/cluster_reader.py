"""Reads a publication from a Redis or Valkey cluster: rows when they are asked for, and a cache of hot ones."""

import dataclasses
import logging
import tempfile
import threading
import time
from collections.abc import Iterable

import numpy as np

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication import cluster_contents, cluster_rows
from ctr_trainer.publication.cluster import Cluster, ClusterChanged
from ctr_trainer.publication.cluster_contents import ClusterState, read_state
from ctr_trainer.publication.cluster_keys import BUCKETS
from ctr_trainer.publication.cluster_rows import REMOVED_SECONDS
from ctr_trainer.publication.reading import DenseFiles, RowsAhead, RowsLost, Unreadable
from ctr_trainer.publication.records import Record
from ctr_trainer.settings.publish_config import RedisFiles

_log = logging.getLogger(__name__)
_TRIES, _PAUSE_SECONDS = 3, 0.1
# Without a look for so long a key may have been removed and forgotten since the record that is served.
_MOST_SECONDS_UNLOOKED = REMOVED_SECONDS / 2


class HotRows:
    """The rows of one table that were read lately; a row is given for `age_secs` at most. For one thread at a time.

    Args:
      width: floats of a row.
      most_rows: how many are kept; when there are more, all are forgotten.
      age_secs: for how long.
    """

    def __init__(self, width, most_rows, age_secs):
        self._index, self._most, self._age = Index(), most_rows, age_secs
        self._weights = np.empty((most_rows, width), np.float32)
        self._times, self._epochs = np.zeros(most_rows), np.zeros(most_rows, np.int64)

    def find(self, keys, epoch):
        """-> (float32[U, width], bool[U]: whether the row is there).

        Args:
          keys: int64[U].
          epoch: that is served: a row of an epoch before the last one is not given.
        """
        weights = np.zeros((len(keys), self._weights.shape[1]), np.float32)
        slots = self._index.find(keys)
        there = slots >= 0
        own = slots[there]
        there[there] = (self._times[own] > time.monotonic() - self._age) & (self._epochs[own] >= epoch - 1)
        weights[there] = self._weights[slots[there]]
        return weights, there

    def put(self, keys, weights, epoch):
        """Keeps rows that were read while `epoch` was served."""
        keys, weights = keys[: self._most], weights[: self._most]
        if len(self._index) + len(keys) > self._most:
            self._index.clear()
        slots = self._index.find_or_add(keys)
        self._weights[slots], self._times[slots], self._epochs[slots] = weights, time.monotonic(), epoch


@dataclasses.dataclass(frozen=True)
class _Served:
    """What is served.

    Attributes:
      state: with the record.
      hot: for each table by its name the rows that are kept.
    """

    state: ClusterState
    hot: dict[str, HotRows]


class ClusterReader:
    """A `RowReader` of a cluster. A batch's rows come from all nodes at once: one round trip.

    Each row says its epoch, also for a while one that was removed. A row that is more than one epoch ahead of the
    served record raises `RowsAhead`. Each read and each refresh makes sure by the marks of the buckets that the cluster
    has not lost rows; if it has, reads raise `RowsLost` until the rows are there again.

    Args:
      url: see `Cluster`.
      redis: `RedisFiles`.
      cache_dir: where towers lie on this host; "" for the system's directory of temporary files.
      cache_rows: rows of each table that are kept for the next batches; 0 for none.
      cache_secs: for how long such a row is given, after which the cluster is asked again.

    Raises:
      UserError: nothing is published there, or the cluster cannot be used.
    """

    def __init__(
        self, url: str, redis: RedisFiles, cache_dir: str = "", cache_rows: int = 100_000, cache_secs: float = 1.0
    ):
        self._cluster, self._cache = Cluster(url, redis), (cache_rows, cache_secs)
        self._place = tempfile.TemporaryDirectory(prefix="ctr_trainer-tower-", dir=cache_dir or None)
        self._dense, self._lock = DenseFiles(self._place.name), threading.Lock()
        self._unreadable, self.lookups, self.hits = Unreadable(), 0, 0
        self._ready = self._served = None
        self.lost = ""
        try:
            state = self._look()
            if state is None:
                raise UserError(f"{url}: there is no publication yet: train with --publish, or publish a checkpoint")
            self._ready = self._fetch(state)
        except BaseException:
            self.close()
            raise
        self.advance()

    def refresh(self) -> Record | None:
        state = self._look()
        newest = self._ready or self._served.state
        if state is not None and state.place != newest.place:
            self._ready = self._fetch(state)
        return self._ready and self._ready.record

    def advance(self) -> None:
        state, self._ready = self._ready, None
        if state is not None:
            same = self._served is not None and state.place[:2] == self._served.state.place[:2]
            self._served = _Served(state, self._served.hot if same else self._cold(state.record))
            self.lost = ""

    def read(self, table: str, keys: np.ndarray) -> np.ndarray:
        served = self._served
        record = served.state.record
        if self.lost:
            raise RowsLost(self.lost)
        if table not in served.hot:
            raise UserError(f"{self._cluster.url}: no table {table}; there are {', '.join(served.hot)}")
        if time.monotonic() > self._looked + _MOST_SECONDS_UNLOOKED:
            raise RowsAhead(f"{self._cluster.url}: it was not looked for a newer record for too long: refresh first")
        keys, hot = np.require(keys, np.int64, ("C", "A")), served.hot[table]
        with self._lock:
            weights, there = hot.find(keys, record.epoch)
            self.lookups, self.hits = self.lookups + len(keys), self.hits + int(there.sum())
        if not there.all():
            missing = keys[~there]
            weights[~there] = read = self._read(served, table, missing)
            with self._lock:
                hot.put(missing, read, record.epoch)
        return weights

    def _read(self, served: _Served, table: str, keys: np.ndarray) -> np.ndarray:
        try:
            return self._asked(lambda: cluster_rows.read(self._cluster, served.state.record, table, keys))
        except RowsLost as error:
            if self._served is served:
                self.lost = str(error)
            raise

    @property
    def record(self) -> Record:
        return self._served.state.record

    def dense_path(self, record=None):
        return self._dense.path_of(record or self.record)

    def age_secs(self):
        return max(time.time() - self.record.time, 0.0)

    def close(self):
        self._cluster.close()
        self._place.cleanup()

    def _look(self) -> ClusterState | None:
        """Returns the state of the cluster, with all rows there if it is another record's; None if it has none.

        Raises:
          RowsLost: rows of the served record, or of the newer one, are lost.
          UserError: the cluster does not answer.
        """
        state, served = self._asked(lambda: read_state(self._cluster)), self._served
        if served is not None:
            # A node that is flushed or comes back empty has no mark at all; after a loss each mark has to be there.
            buckets = range(BUCKETS) if self.lost else self._cluster.primaries.values()
            nodes = self._lost_at(served.state, buckets) if state is not None else [self._cluster.control]
            self.lost = str(cluster_contents.rows_lost(self._cluster, self.record, nodes)) if nodes else ""
        if state is not None and (served is None or state.place != served.state.place):
            nodes = self._lost_at(state, range(BUCKETS))
            if nodes:
                raise cluster_contents.rows_lost(self._cluster, state.record, nodes)
        elif self.lost:
            raise RowsLost(self.lost)
        self._looked = time.monotonic()
        return state

    def _lost_at(self, state: ClusterState, buckets: Iterable[int]) -> list[str]:
        return self._asked(lambda: cluster_contents.nodes_that_lost_rows(self._cluster, state.record, buckets))

    def _fetch(self, state: ClusterState) -> ClusterState:
        """Returns the state, whose tower is here."""
        with self._unreadable.reading(state.place):
            self._dense.fetch(
                state.record, lambda file: cluster_contents.tower_blocks(self._cluster, state.record, file)
            )
        return state

    def _cold(self, record: Record) -> dict[str, HotRows]:
        return {name: HotRows(config.weights, *self._cache) for name, config in record.configs().items()}

    def _asked(self, ask):
        """-> what `ask()` returns; it is asked again if a node is lost or has moved.

        Raises:
          UserError: it cannot be answered.
        """
        for left in reversed(range(_TRIES)):
            try:
                return ask()
            except ClusterChanged as error:
                if not left:
                    raise
                _log.debug("asked again: %s", error)
                time.sleep(_PAUSE_SECONDS)
                self._refresh_nodes()
        raise AssertionError

    def _refresh_nodes(self):
        try:
            self._cluster.refresh()
        except ClusterChanged as error:
            _log.debug("asked again: %s", error)
