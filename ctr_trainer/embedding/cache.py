"""A worker's copies of the rows it trains on."""

import uuid

import numpy as np

from ctr_trainer.embedding import row_kernels
from ctr_trainer.embedding.memory import GrowableArray
from ctr_trainer.embedding.table import Table
from ctr_trainer.latency import Latency

# Rows a request, which bounds what the service holds at a time.
_REQUEST_ROWS = 1 << 17


class Cache:
    """One worker's copies of one table's rows, trained on at once and merged with the other workers' at each sync.

    A sync pushes `row - row_at_last_sync` of each row that was stepped since, weights and optimizer state alike; the
    store adds the changes of all workers, and the merged rows come back.

    Staleness: a sync drops every row that was not stepped since the sync before it, so what is in the cache was pulled
    or merged after the last sync, and no row is ever older than one sync interval. Within an interval a worker does not
    see the others' changes.

    Caveat: `sync` and `refresh` renumber the slots. Not safe to use from several threads at a time.

    Attributes:
      config: the TableConfig.
      hits, misses: distinct keys found here, and pulled, since the start.
      bytes_synced: bytes of keys and rows that went to and came from the store.
      lookup_latency: OpsEmbeddingLookup, of `find` and `find_or_create` with their pulls.
      push_latency: OpsPushGrad, of `sync` and `push`.
    """

    def __init__(self, store, config, worker, lookup_latency=None, push_latency=None):
        """Creates the table in the store, where it is not there.

        Args:
          store: a Store.
          config: the TableConfig.
          worker: str, this worker's name; it is made unique to this start, so that the store takes its first push.
          lookup_latency, push_latency: recorders shared with other caches; by default this cache has its own.
        """
        self.config = config
        self.hits = self.misses = self.bytes_synced = 0
        self.lookup_latency = lookup_latency or Latency("OpsEmbeddingLookup")
        self.push_latency = push_latency or Latency("OpsPushGrad")
        self._store = store
        self._worker = f"{worker}-{uuid.uuid4().hex}"
        self._sequence = 0
        self._table = Table(config)
        self._base = GrowableArray(np.float32, (config.width,))
        self._touched = GrowableArray(np.uint8)
        self._pushed = None
        store.create_table(config)

    def __len__(self):
        return len(self._table)

    @property
    def rows(self):
        """float32[n, width], in slot order."""
        return self._table.rows

    def find_or_create(self, keys):
        """int64[U] -> int64[U] slots; what is not here is pulled, new rows with their initial values."""
        with self.lookup_latency.measure():
            return self._find(keys, "initial")

    def find(self, keys):
        """int64[U] -> int64[U] slots, for evaluation; -1 where the store has no row either."""
        with self.lookup_latency.measure():
            return self._find(keys, "zeros")

    def apply_gradients(self, slots, gradients, learning_rate):
        """As Table's: one optimizer step on each row, here and at once."""
        if self._pushed is not None:
            raise RuntimeError("apply_gradients between push and refresh: the steps would be lost")
        self._table.apply_gradients(slots, gradients, learning_rate)
        row_kernels.mark(self._touched.array, np.require(slots, np.int64, ("C",)))

    def sync(self):
        """Pushes this worker's changes, takes the merged rows back and drops the rows that it did not step."""
        with self.push_latency.measure():
            keys, deltas = self._changes()
            merged = np.empty_like(deltas)
            for part, sequence in self._requests(len(keys)):
                merged[part] = self._store.sync(self.config.name, keys[part], deltas[part], self._worker, sequence)
            self._replace(keys, merged)
            self.bytes_synced += keys.nbytes + deltas.nbytes + merged.nbytes

    def push(self):
        """The first half of a strict sync: pushes this worker's changes. `refresh` has to follow, after a barrier."""
        with self.push_latency.measure():
            keys, deltas = self._changes()
            for part, sequence in self._requests(len(keys)):
                self._store.push(self.config.name, keys[part], deltas[part], self._worker, sequence)
            self._pushed = keys
            self.bytes_synced += keys.nbytes + deltas.nbytes

    def refresh(self):
        """The second half: takes the rows that `push` pushed, as all workers left them, and drops the others."""
        if self._pushed is None:
            raise RuntimeError("refresh without a push")
        merged = self._pull(self._pushed, "initial")
        self._replace(self._pushed, merged)
        self._pushed = None
        self.bytes_synced += merged.nbytes

    def _find(self, keys, missing):
        if self._pushed is not None:
            raise RuntimeError("a lookup between push and refresh")
        slots = self._table.find(keys)
        unknown = np.flatnonzero((slots < 0) & (keys != 0))
        self.hits += np.count_nonzero(slots >= 0)
        self.misses += len(unknown)
        if len(unknown):
            rows = self._pull(keys[unknown], missing)
            self.bytes_synced += rows.nbytes + 8 * len(unknown)
            if missing == "zeros":
                # A row that is all zeros is not there, or reads as if it were not: either way -1 is right, and
                # training will pull it with its initial values.
                there = rows.any(axis=1)
                unknown, rows = unknown[there], rows[there]
            slots[unknown] = self._insert(keys[unknown], rows)
        return slots

    def _pull(self, keys, missing):
        rows = np.empty((len(keys), self.config.width), np.float32)
        for first in range(0, len(keys), _REQUEST_ROWS):
            part = slice(first, first + _REQUEST_ROWS)
            rows[part] = self._store.pull(self.config.name, keys[part], missing)
        return rows

    def _insert(self, keys, rows):
        first = len(self._table)
        self._base.reserve(first + len(keys))
        self._touched.reserve(first + len(keys))
        slots = self._table.find_or_insert(keys, rows)
        self._base.array[first : len(self._table)] = rows
        self._touched.array[first : len(self._table)] = 0
        return slots

    def _changes(self):
        """-> (int64[T], float32[T, width]): the rows stepped since the last sync, and by how much they changed."""
        if self._pushed is not None:
            raise RuntimeError("a sync between push and refresh")
        slots = np.flatnonzero(self._touched.array[: len(self._table)])
        deltas = np.empty((len(slots), self.config.width), np.float32)
        row_kernels.difference(self._table.rows, self._base.array, slots, deltas)
        return self._table.keys[slots], deltas

    def _requests(self, rows):
        for first in range(0, rows, _REQUEST_ROWS):
            self._sequence += 1
            yield slice(first, first + _REQUEST_ROWS), self._sequence

    def _replace(self, keys, rows):
        self._table.clear()
        self._insert(keys, rows)
