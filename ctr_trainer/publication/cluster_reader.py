"""Reads a publication from a Redis or Valkey cluster: rows when they are asked for, and a cache of hot ones."""

import dataclasses
import logging
import tempfile
import threading
import time

import numpy as np

from ctr_trainer.embedding.snapshot.packed_rows import unpack, value_bytes
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication import cluster_tower
from ctr_trainer.publication.cluster import Cluster, ClusterChanged
from ctr_trainer.publication.cluster_keys import buckets_of, row_names
from ctr_trainer.publication.cluster_state import read_state
from ctr_trainer.publication.cluster_target import REMOVED_SECONDS
from ctr_trainer.publication.dense_files import DenseFiles
from ctr_trainer.publication.hot_rows import HotRows
from ctr_trainer.publication.reader import RowsAhead
from ctr_trainer.publication.records import Record

_log = logging.getLogger(__name__)
_TRIES, _PAUSE_SECONDS = 3, 0.1
# Without a look for so long a key may have been removed and forgotten since the record that is served.
_MOST_SECONDS_UNLOOKED = REMOVED_SECONDS / 2


@dataclasses.dataclass(frozen=True)
class _Served:
    """A record, and the `HotRows` of each table by its name."""

    record: Record
    hot: dict


class ClusterReader:
    """A `RowReader` of a cluster. A batch's rows come from all nodes at once: one round trip.

    Each row says its epoch, also for a while one that was removed. A row that is more than one epoch ahead of the
    served record raises `RowsAhead`.

    Args:
      url: see `Cluster`.
      redis: `RedisFiles`.
      cache_dir: where towers lie on this host; "" for the system's directory of temporary files.
      cache_rows: rows of each table that are kept for the next batches; 0 for none.
      cache_secs: for how long such a row is given, after which the cluster is asked again.

    Raises:
      UserError: nothing is published there, or the cluster cannot be used.
    """

    def __init__(self, url, redis, cache_dir="", cache_rows=100_000, cache_secs=1.0):
        self._cluster, self._cache = Cluster(url, redis), (cache_rows, cache_secs)
        self._place = tempfile.TemporaryDirectory(prefix="ctr_trainer-tower-", dir=cache_dir or None)
        self._dense, self._lock = DenseFiles(self._place.name), threading.Lock()
        self.lookups = self.hits = 0
        try:
            self._ready, self._served = self._newest(), None
            if self._ready is None:
                raise UserError(f"{url}: there is no publication yet: train with --publish, or publish a checkpoint")
        except BaseException:
            self.close()
            raise
        self.advance()

    def refresh(self):
        if self._ready is None:
            newer = self._newest()
            if newer is not None and _place(newer) != _place(self.record):
                self._ready = newer
        return self._ready

    def advance(self):
        record, self._ready = self._ready, None
        if record is not None:
            same = self._served is not None and record.generation == self.record.generation
            self._served = _Served(record, self._served.hot if same else self._cold(record))

    def read(self, table, keys):
        served = self._served
        record = served.record
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
            weights[~there] = read = self._read(record, table, missing)
            with self._lock:
                hot.put(missing, read, record.epoch)
        return weights

    @property
    def record(self):
        return self._served.record

    def dense_path(self, record=None):
        return self._dense.path_of(record or self.record)

    def age_secs(self):
        return max(time.time() - self.record.time, 0.0)

    def close(self):
        self._cluster.close()
        self._place.cleanup()

    def _newest(self):
        """-> the `Record` of the cluster, whose tower is here; None if nothing is published."""
        state = self._asked(lambda: read_state(self._cluster))
        if state is None:
            return None
        self._dense.fetch(state.record, lambda file: cluster_tower.blocks_of(self._cluster, state.record, file))
        self._looked = time.monotonic()
        return state.record

    def _cold(self, record):
        """-> {table: `HotRows` without rows}."""
        return {name: HotRows(config.weights, *self._cache) for name, config in record.configs().items()}

    def _read(self, record, table, keys):
        """-> float32[U, weights] from the cluster."""
        config = record.configs()[table]
        buckets = buckets_of(keys)
        order = np.argsort(buckets, kind="stable")
        buckets = buckets[order]
        names = row_names(self._cluster.name, record.generation, table, keys[order], buckets)
        edges = np.flatnonzero(np.diff(buckets, prepend=-1, append=-1)).tolist()
        commands = [
            (int(buckets[first]), ("MGET", *names[first:stop])) for first, stop in zip(edges, edges[1:], strict=False)
        ]
        values = [value for answer in self._asked(lambda: self._cluster.run(commands)) for value in answer]
        weights = np.zeros((len(keys), config.weights), np.float32)
        width = value_bytes(config, record.dtype)
        there = np.fromiter((value is not None and len(value) == width for value in values), np.bool_, len(values))
        packed = np.frombuffer(b"".join(value for value in values if value and len(value) == width), np.uint8)
        weights[order[there]], epochs = unpack(packed.reshape(-1, width), config, record.dtype)
        removed = [int.from_bytes(value, "little") for value in values if value is not None and len(value) != width]
        newest = max([*removed, int(epochs.max(initial=0))], default=0)
        if newest > record.epoch + 1:
            raise RowsAhead(f"{self._cluster.url}: rows of epoch {newest} were read, and {record.epoch} is served")
        return weights

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


def _place(record):
    return record.generation, record.epoch
