"""The embedding tables of a model. Their rows are looked up before a step, trained after it, and synced."""

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.index.key_kernels import distinct
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.worker_rows import TableRows, WorkerRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.embedding.worker.row_copies import RowCopies
from ctr_trainer.estimator.row_gradients import RowGradients, RowSync, TableGradients
from ctr_trainer.features.columns import TableLimits
from ctr_trainer.features.spec import TableFeatures
from ctr_trainer.features.tensors import EMBEDDING, FIELD_SUMS, LINEAR, PAIRS, SEQUENCE, VECTORS
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.measuring.latency import Latency

Lookups = dict[str, tuple[Lookup, int | None]]  # By table name: the keys, and the result of `RowCopies.pull_ahead`.


class TableInputs:
    """The tensors of one table that a model uses, and the columns of a row that are fed to each tensor.

    A row's weights are an embedding if the model uses `embedding` or a sequence, then a linear weight if the model uses
    `linear`. Keys that no tensor uses are not looked up, so a model without histories creates no rows for their keys.

    `segments`: dict of kind -> placeholder; see `FedFeatures`.

    `features`: the names of the features that `lookup` looks up, in its order.
    """

    def __init__(self, table: TableFeatures, segments: Mapping[str, tf.Tensor]) -> None:
        self._table, self._segments = table, segments
        self._pooled = not {EMBEDDING, FIELD_SUMS, LINEAR}.isdisjoint(segments)
        kinds = SEQUENCE, PAIRS
        self._sequences = [f for f in table.sequences if any(f"{kind}/{f.name}" in segments for kind in kinds)]
        self.features = tuple(f.name for f in (*(table.pooled if self._pooled else ()), *self._sequences))
        self._embeds = EMBEDDING in segments or FIELD_SUMS in segments or bool(self._sequences)
        self._dim = table.dim if self._embeds else 0  # The linear weight follows the embedding.

    def config(self, config: EmbeddingConfig, limits: TableLimits, seed: int) -> TableConfig:
        """Returns the `TableConfig` to train with; `seed` initializes new rows."""
        # A uniform distribution on +-s has the standard deviation s / sqrt(3). Linear weights start at 0.
        parts = [(self._dim, config.stddev * math.sqrt(3))] * self._embeds + [(1, 0.0)] * (LINEAR in self._segments)
        return TableConfig(
            name=self._table.name,
            dims=tuple(dim for dim, _ in parts),
            init_scales=tuple(scale for _, scale in parts),
            optimizer=config.row_optimizer,
            seed=seed,
            min_frequency=limits.min_frequency,
            max_rows=limits.max_rows,
            eviction=limits.eviction,
            ttl_steps=limits.ttl_steps,
            row_dtype=config.row_dtype,
        )

    def lookup(self, batch: Batch) -> Lookup:
        """Returns the `Lookup` of a batch."""
        keys = batch.keys[self._table.name]
        bags = [(batch.bags[f.name], f.combiner) for f in self._table.bags if f.combiner] if self._pooled else []
        sequences = [(batch.bags[f.name], f) for f in self._sequences]
        return Lookup(
            keys if self._pooled else keys[:, :0],
            [(bag.values, bag.splits, combiner, bag.weights) for bag, combiner in bags],
            [(bag.values, bag.splits, f.max_length) for bag, f in sequences],
        )

    def gather(self, lookup: Lookup, distinct: np.ndarray) -> tuple[dict[tf.Tensor, np.ndarray], np.ndarray | None]:
        """Returns the feed_dict of the tensors, and the vectors that it sums for `field_sums`, or None.

        `distinct`, float32[U, weights], is the result of `WorkerRows.read`.
        """
        feed: dict[tf.Tensor, np.ndarray] = {}
        segments, dim, summed = self._segments, self._dim, None
        if EMBEDDING in segments or FIELD_SUMS in segments:
            vectors = lookup.gather(distinct, 0, dim)
            if EMBEDDING in segments:
                feed[segments[EMBEDDING]] = vectors
            if FIELD_SUMS in segments:
                feed[segments[FIELD_SUMS]], summed = lookup.add_fields(vectors), vectors
        if self._embeds and VECTORS in segments:
            feed[segments[VECTORS]] = lookup.vectors(distinct, 0, dim)
        for number, f in enumerate(self._sequences):
            if (padded := f"{SEQUENCE}/{f.name}") in segments:
                feed[segments[padded]] = lookup.gather_sequence(number, distinct, 0, dim)
            if (pairs := f"{PAIRS}/{f.name}") in segments:
                feed[segments[pairs]] = lookup.pairs(number)
        if LINEAR in segments:
            feed[segments[LINEAR]] = lookup.gather(distinct, dim, 1)
        return feed, summed

    def sum_gradients(
        self, lookup: Lookup, gradients: Mapping[str, np.ndarray], summed: np.ndarray | None
    ) -> list[np.ndarray]:
        """Returns one float32[U, dim] for each part of a row, the gradients, by tensor name, summed over equal keys.

        `summed` are the vectors that `gather` has returned.
        """

        def of(kind: str) -> np.ndarray | None:
            return gradients.get(self._segments[kind].name) if kind in self._segments else None

        sums = []
        if self._embeds:
            of_sums, of_sequences = of(FIELD_SUMS), [of(f"{SEQUENCE}/{f.name}") for f in self._sequences]
            fields = None if of_sums is None or summed is None else (of_sums, summed)
            sums.append(lookup.sum_gradients(self._dim, of(EMBEDDING), of_sequences, of(VECTORS), fields))
        if LINEAR in self._segments:
            sums.append(lookup.sum_gradients(1, of(LINEAR)))
        return sums


class TableLookup(NamedTuple):
    """The lookup of a batch's keys in one table.

    `slots` are int64[U], the slots of the distinct keys, and `summed` the vectors that `TableInputs.gather` returned.
    """

    rows: WorkerRows
    inputs: TableInputs
    lookup: Lookup
    slots: np.ndarray
    summed: np.ndarray | None


class Embeddings:
    """The rows of a model's embedding inputs, by table; `open_embeddings` makes it.

    A single worker trains the tables of the store directly, as do workers that share them in memory. Other workers
    train copies and `sync` them, see `RowCopies`. Between two syncs, a copy lacks the changes of the other copies.

    Staleness: a row that a step reads lacks the changes that other copies sent during this worker's last s steps. With
    a sync every N steps, s is the sum of

    - the steps since the last sync began, fewer than N;
    - the steps during which that sync runs, fewer than N because the next sync waits for it; 0 if syncs are strict;
    - the batches by which the row was pulled ahead, at most 2 `prefetch_batches`; 0 if syncs are strict.

    Threads: the training thread calls all methods, but `prepare` may run in its own thread, and `fetch` in several.

    Args:
      dense: the rows of a dense optimizer in a training.
      ahead: number of batches whose rows `prepare` pulls in one request; 0 to pull nothing ahead.
      lookup_latency: OpsEmbeddingLookup: time of each request for rows or, without a service, each lookup in a table.
      push_latency: OpsPushGrad: time of each request that sends changes or, without a service, each update of a table.

    `on_disk`: whether `fetch` may have to read.
    `latencies`: these latencies, that of the syncs, and OpsLocalLookup: time of each lookup in a copy of the service's
    rows that needs no request.
    """

    def __init__(
        self,
        store: Store,
        inputs: Mapping[str, TableInputs],
        rows: Mapping[str, WorkerRows],
        dense: Sequence[TableRows],
        gradients: RowGradients,
        syncs: RowSync,
        *,
        ahead: int,
        new_keys: NewKeys,
        lookup_latency: Latency,
        push_latency: Latency,
    ) -> None:
        self._store, self._inputs, self.rows, self._dense = store, inputs, rows, dense
        self._gradients, self.syncs, self._ahead, self.new_keys = gradients, syncs, ahead, new_keys
        self._lookup, self._local, self._push = lookup_latency, Latency("OpsLocalLookup"), push_latency
        self.latencies = [self._lookup, self._local, self._push, syncs.latency]
        self.on_disk = any(each.on_disk for each in rows.values())
        self._evicts = distributed.is_chief() and any(each.config.evicts for each in rows.values())

    def begin(self) -> None:
        """Prepares the rows. Call this before the first lookup, after the rows of a checkpoint were restored."""
        for rows in self.rows.values():
            rows.begin()

    def begin_training(self, step: int, learning_rate: Callable[[], float]) -> None:
        """Prepares the rows for the first step after `step`, whose learning rate is `learning_rate()`."""
        for rows in self._dense:  # After a resume, new rows of the first batch catch up with this rate.
            rows.expect_learning_rate(learning_rate())
        if self._evicts:
            self._store.advance(step)

    def prepare(self, batches: Iterable[Batch]) -> Iterator[tuple[Batch, Lookups]]:
        """Yields each batch with the part of its lookups that can be done ahead of the step.

        Pulls the rows of `ahead` batches in one request. If this worker can miss no row, pulls nothing, because merging
        the keys of these batches takes a sixth of a step with two workers.
        """
        batches = iter(batches)
        while True:
            ahead = self._ahead if any(rows.asks for rows in self.rows.values()) else 0
            group = list(itertools.islice(batches, max(ahead, 1)))
            if not group:
                return
            prepared = [
                (batch, {name: inputs.lookup(batch) for name, inputs in self._inputs.items()}) for batch in group
            ]
            since: Mapping[str, int] = self._pull_ahead([lookups for _, lookups in prepared]) if ahead else {}
            for batch, lookups in prepared:
                yield batch, {name: (lookup, since.get(name)) for name, lookup in lookups.items()}

    def fetch(self, prepared: tuple[Batch, Lookups]) -> tuple[Batch, Lookups]:
        """Reads rows on disk that a batch of `prepare` will look up, and returns the batch."""
        for name, (lookup, _) in prepared[1].items():
            self.rows[name].fetch(lookup.unique)
        return prepared

    def look_up(self, lookups: Lookups, create: bool) -> tuple[dict[Any, np.ndarray], list[TableLookup]]:
        """Returns the feed_dict of the embedding inputs of a batch, and the lookup in each table.

        A key without a row gets a new row if `create`, as in training, else zeros.
        """
        feed: dict[Any, np.ndarray] = {}
        tables, is_due = [], self.new_keys.begin_lookup(create)
        for name, rows in self.rows.items():
            inputs, (lookup, since) = self._inputs[name], lookups[name]
            began, asked = time.perf_counter(), rows.misses
            slots = rows.find_or_create(lookup.unique, since) if create else rows.find(lookup.unique)
            fed, summed = inputs.gather(lookup, rows.read(lookup.unique, slots, create))
            feed |= fed
            self.new_keys.look(inputs.features, rows, lookup, slots, is_due)
            if rows.misses == asked:  # A request measures its own latency.
                latency = self._local if name in self.syncs.copies else self._lookup
                latency.record(1e6 * (time.perf_counter() - began))
            tables.append(TableLookup(rows, inputs, lookup, slots, summed))
        return feed, tables

    def add_gradients(
        self, tables: Sequence[TableLookup], gradients: Mapping[str, np.ndarray], weight: float = 1.0
    ) -> None:
        """Adds the row gradients of a batch to those of the current step. For `weight`, see `worker_rows.weighed`.

        `gradients` is a dict of embedding input's name -> gradient of the graph's loss, float32 with the input's shape.
        Rows of inputs on which the loss does not depend take a step with gradient 0.
        """
        parts = [
            TableGradients(rows, lookup.unique, slots, inputs.sum_gradients(lookup, gradients, summed))
            for rows, inputs, lookup, slots, summed in tables
        ]
        self._gradients.add(parts, weight)

    def apply_gradients(self, learning_rate: float, share: float = 1.0) -> None:
        """Updates all rows whose gradients were added in this step. For `share`, see `worker_rows.weighed`.

        A step without examples has a share of 0 and no keys. It moves no row of a dense optimizer.
        """
        host = self._gradients.host
        for part in self._gradients.take(share):
            rate = learning_rate if share or len(part.keys) else 0.0
            # Every worker counts the steps of a dense optimizer.
            if host is None or host.trains or part.rows in self._dense:
                is_copy = isinstance(part.rows, RowCopies)
                with contextlib.nullcontext() if is_copy else self._push.measure():
                    part.rows.apply_gradients(part.keys, part.slots, part.sums, rate)
        if host is not None:
            host.end_step()

    def sync_if_due(self, step: int, clock: Clock) -> None:
        """Syncs the copies if a sync is due after `step`, and removes expired rows every `sync_steps` steps.

        Raises an error if the service has ended or the background sync has failed.
        """
        self._store.look()
        self.syncs.sync_if_due(step, clock)
        if self._evicts and step % self.syncs.steps == 0:
            self._store.advance(step)

    def flush(self) -> None:
        """Returns when the store has exactly all changes of this worker and no row has missed a step. A collective."""
        if self._dense:
            distributed.barrier("rows_stepped")  # A row that another worker is about to update has not missed a step.
        self.catch_up()
        self.syncs.flush()

    def catch_up(self) -> None:
        """Makes the steps that rows of a dense optimizer missed."""
        for rows in self._dense if distributed.local_rank() == 0 else ():
            rows.catch_up()

    def total(self, name: str) -> int:
        """Returns the sum over the tables of `hits`, `misses` or `bytes_synced` of `WorkerRows`."""
        return sum(getattr(rows, name) for rows in self.rows.values())

    def _pull_ahead(self, group: Sequence[Mapping[str, Lookup]]) -> dict[str, int]:
        return self.syncs.on_all(
            lambda name, copies: copies.pull_ahead(distinct([lookups[name].unique for lookups in group]))
        )
