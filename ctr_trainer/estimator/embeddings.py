"""The embedding tables of a model. Their rows are looked up before a step, trained after it, and synced."""

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.index.key_kernels import distinct
from ctr_trainer.embedding.memory.growable_array import LockTimes
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.worker_rows import RowStep, RowTotals, TableRows, WorkerRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import merging
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.embedding.worker.row_copies import RowCopies
from ctr_trainer.estimator.open_rows import RowPlan, as_trained, follow_steps, open_rows
from ctr_trainer.estimator.row_gradients import HostGradients, OwnGradients, RowGradients
from ctr_trainer.estimator.row_sync import RowSync
from ctr_trainer.estimator.table_inputs import LookedUp, TableInputs, TableLookup
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.measuring.clock import PHASES
from ctr_trainer.system.measuring.latency import Latency

Lookups = dict[str, tuple[Lookup, int | None]]  # By table name: the keys, and the result of `RowCopies.pull_ahead`.


@dataclasses.dataclass(frozen=True)
class RowLatencies:
    """The latencies of lookups and updates of rows.

    Attributes:
      lookup: OpsEmbeddingLookup: time of each request for rows or, without a service, each lookup in a table.
      local: OpsLocalLookup: time of each lookup in a copy of the service's rows that needs no request.
      push: OpsPushGrad: time of each request that sends changes or, without a service, each update of a table.
    """

    lookup: Latency
    local: Latency
    push: Latency


class Embeddings:
    """The rows of a model's embedding inputs, by table; `open_embeddings` makes it.

    A single worker trains the tables of the store directly, as do workers that share them in memory. Other workers
    train copies and `sync` them, see `RowCopies`. Between two syncs, a copy lacks the changes of the other copies.

    Staleness: a row that a step reads lacks the changes that other copies sent during this worker's last s steps. With
    a sync every N steps, s is the sum of

    - the steps since the last sync began, fewer than N;
    - the steps during which that sync runs, fewer than N because the next sync waits for it; 0 if syncs are strict;
    - the batches by which the row was pulled ahead, at most 2 `prefetch_batches`; 0 if syncs are strict.

    Threads: the training thread calls all methods, except that `prepare` may run in its own thread.

    Args:
      store: the store of the rows.
      inputs: dict of table name -> `TableInputs`.
      rows: dict of table name -> `WorkerRows`.
      dense: the rows of a dense optimizer in a training.
      gradients: adds up, regularizes and clips the gradients of a step.
      syncs: syncs the rows that are copies.
      ahead: number of batches whose rows `prepare` pulls in one request; 0 to pull nothing ahead.

    Attributes:
      rows: see above.
      new_keys: the shares of keys that were never trained.
      row_latencies: `RowLatencies`.
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
        latencies: RowLatencies,
    ) -> None:
        self._store, self._inputs, self.rows, self._dense = store, inputs, rows, dense
        self._gradients, self._syncs, self._ahead = gradients, syncs, ahead
        self.new_keys, self.row_latencies = new_keys, latencies

    def begin(self) -> None:
        """Prepares the rows. Call this before the first lookup, after the rows of a checkpoint were restored."""
        for rows in self.rows.values():
            rows.begin()

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

    def look_up(self, lookups: Lookups, create: bool) -> LookedUp:
        """Returns the rows of a batch. A key without a row gets a new row if `create`, as in training, else zeros."""
        feed: dict[Any, np.ndarray] = {}
        tables, is_due = [], self.new_keys.begin_lookup(create)
        for name, rows in self.rows.items():
            inputs, (lookup, since) = self._inputs[name], lookups[name]
            began, asked = time.perf_counter(), rows.totals().misses
            if create:  # A strict lookup sees every earlier push, even if the row was pulled ahead.
                slots = rows.find_or_create(lookup.unique, None if self.is_strict else since)
            else:
                slots = rows.find(lookup.unique)
            feed |= inputs.gather(lookup, rows.rows, slots)
            self.new_keys.look(inputs.features, rows, lookup, slots, is_due)
            if rows.totals().misses == asked:  # A request measures its own latency.
                latency = self.row_latencies.local if name in self._syncs.copies else self.row_latencies.lookup
                latency.record(1e6 * (time.perf_counter() - began))
            tables.append(TableLookup(rows, inputs, lookup, slots))
        return LookedUp(feed, tables)

    def add_gradients(self, looked_up: LookedUp, gradients: Mapping[str, np.ndarray], weight: float = 1.0) -> None:
        """Adds the row gradients of a batch to the gradients of the current step, which `apply_gradients` completes.

        Args:
          gradients: dict of embedding input's name -> gradient of the graph's loss, float32 with the input's shape.
            Rows of inputs on which the loss does not depend take a step with gradient 0.
          weight: see `worker_rows.weighed`.
        """
        self._gradients.add([table.gradients(gradients) for table in looked_up.tables], weight)

    def apply_gradients(
        self, looked_up: LookedUp, gradients: Mapping[str, np.ndarray], weight: float, step: RowStep
    ) -> None:
        """Adds gradients as `add_gradients` does, then updates all rows whose gradients were added in this step."""
        self.add_gradients(looked_up, gradients, weight)
        workers = self._gradients.workers
        for part in self._gradients.take(step):
            if workers.trains or part.rows in self._dense:  # Every worker counts the steps of a dense optimizer.
                is_copy = isinstance(part.rows, RowCopies)
                with contextlib.nullcontext() if is_copy else self.row_latencies.push.measure():
                    part.rows.apply_gradients(part.slots, part.sums, step.learning_rate)
        workers.end_step()

    @property
    def is_strict(self) -> bool:
        """Whether syncs are collectives, after which lookups see the pushes of all copies."""
        return self._syncs.is_strict

    def sync(self) -> None:
        """Syncs this worker's copies with the service, see `RowSync.sync`."""
        self._syncs.sync()

    def look(self) -> None:
        """Raises an error if the service has ended or the background sync has failed. Does not wait."""
        self._store.look()
        self._syncs.look()

    def flush(self) -> None:
        """Syncs, and returns when the store has exactly all changes of this worker and no row has missed a step.

        A collective if the workers of a host share copies, with a dense optimizer, and if syncs are strict.
        """
        if self._dense:
            distributed.barrier("rows_stepped")  # A row that another worker is about to update has not missed a step.
        self.catch_up()
        self._syncs.flush()

    def catch_up(self) -> None:
        """Makes the steps that rows of a dense optimizer missed."""
        for rows in self._dense if distributed.local_rank() == 0 else ():
            rows.catch_up()

    @property
    def moves_all_rows(self) -> bool:
        """Whether training updates all rows at every step, with a dense optimizer."""
        return bool(self._dense)

    def expect_learning_rate(self, learning_rate: float) -> None:
        """Sets the learning rate of the first step. After a resume, new rows of its batch catch up with this rate."""
        for rows in self._dense:
            rows.expect_learning_rate(learning_rate)

    def close(self) -> None:
        """Waits for a running sync and ignores its errors, because the training may have ended early."""
        self._syncs.close()

    @property
    def copies_of(self) -> str | None:
        """The owner of each copy, `host` or `worker`; None if there are no copies."""
        return self._syncs.owner

    @property
    def sync_latency(self) -> Latency:
        """OpsParameterSync: time of each sync of all tables."""
        return self._syncs.latency

    @property
    def sync_seconds(self) -> float:
        """Duration of the last sync."""
        return self._syncs.seconds

    @property
    def latencies(self) -> list[Latency]:
        return [self.row_latencies.lookup, self.row_latencies.local, self.row_latencies.push, self._syncs.latency]

    def totals(self) -> RowTotals:
        return sum((rows.totals() for rows in self.rows.values()), RowTotals())

    def lock_times(self) -> LockTimes:
        """The cost of the locks of rows that several workers train; 0 with one worker."""
        shared = self.rows.values() if distributed.size() > 1 else ()
        return sum((rows.lock_times for rows in shared), LockTimes())

    def _pull_ahead(self, group: Sequence[Mapping[str, Lookup]]) -> dict[str, int]:
        return self._syncs.on_all(
            lambda name, copies: copies.pull_ahead(distinct([lookups[name].unique for lookups in group]))
        )


def open_embeddings(
    features: FedFeatures,
    config: EmbeddingConfig,
    store: Store,
    plan: RowPlan | None = None,
    *,
    seed: int = 0,
    ahead: int = 0,
    trained: Mapping[str, TableConfig] | None = None,
    uncached: bool = False,
) -> Embeddings:
    """Opens the embedding rows of a model. A collective.

    Args:
      features: the features after the model was built.
      plan: `RowPlan`; None for an evaluation.
      seed: initializes new rows.
      ahead: see `Embeddings`.
      trained: dict of table name -> the TableConfig to use; None to make them from `config` and `seed`.
      uncached: whether each lookup reads the store, for an evaluation within training.
    """
    inputs = {
        table.name: TableInputs(table, features.segments[table.name])
        for table in features.spec.tables
        if table.name in features.segments
    }
    tables = [each.config(config, features.spec.limits_of(name), seed) for name, each in inputs.items()]
    if trained is not None:
        tables = [as_trained(table, trained) for table in tables]
    shares = store.host_memory is not None and not uncached  # Then one worker pushes and syncs for its host.
    lookup = Latency(PHASES["lookup"].operation)
    push = Latency(PHASES["update"].operation, "the host" if shares else "")
    opened = open_rows(store, config, tables, lookup_latency=lookup, push_latency=push, uncached=uncached)
    # If there are copies, the log also reports an interval in which no lookup needed the service.
    lookup.shows_none = bool(opened.copies)
    workers, size, given = OwnGradients(), distributed.size(), plan or RowPlan()
    syncs = RowSync(opened.copies, opened.group, given.in_order)
    if given.in_order and size > 1 and syncs.owner != "worker":
        workers = HostGradients()
    factor = merging.gradient_factor(config.row_optimizer.name, size, given.scale or size, opened.group.groups)
    names = (name for each in inputs.values() for name in each.features)
    return Embeddings(
        store,
        inputs,
        opened.rows,
        follow_steps(config, opened.rows.values(), None if plan is None else plan.first_step),
        RowGradients(factor, config.l2, config.clip_norm, workers),
        syncs,
        ahead=ahead,
        new_keys=NewKeys(names, distributed.is_chief(), distributed.is_chief() and plan is not None),
        latencies=RowLatencies(lookup, Latency("OpsLocalLookup"), push),
    )
