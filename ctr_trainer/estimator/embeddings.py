"""The embedding tables of a model. Their rows are looked up before a step and trained after it."""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.index.key_kernels import distinct
from ctr_trainer.embedding.memory.growable_array import LockTimes
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.store.worker_rows import RowStep, RowTotals, WorkerRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import merging
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.estimator.open_rows import EachTable, RowPipeline, RowsInTurn, as_trained, follow_steps, open_rows
from ctr_trainer.estimator.row_gradients import HostGradients, OwnGradients, RowGradients
from ctr_trainer.estimator.table_inputs import LookedUp, TableInputs, TableLookup
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.measuring.clock import PHASES
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.processes.waiting import Background

Lookups = dict[str, tuple[Lookup, int | None]]  # By table name: the keys, and the result of `WorkerRows.pull_ahead`.


class Embeddings:
    """The rows of a model's embedding inputs, by table.

    A single worker trains the tables of the store directly, as do workers that share them in memory (`SharedTable`).
    Other workers train copies and `sync` them: one copy per host (`HostRows`) or one per worker (`RowCache`). Between
    two syncs, a copy lacks the changes of the other copies.

    Staleness: a row that a step reads lacks the changes that other copies sent during this worker's last s steps. With
    a sync every N steps, s is the sum of

    - the steps since the last sync began, fewer than N;
    - the steps during which that sync runs, fewer than N because the next sync waits for it; 0 if `in_order`;
    - the batches by which the row was pulled ahead, at most 2 `prefetch_batches`; 0 if `in_order`;
    - one step with `RowPipeline`.

    Threads: the training thread calls all methods, except that `prepare` may run in its own thread, and `RowPipeline`
    looks up and trains rows in its own thread.

    Args:
      features: the features after the model was built.
      seed: initializes new rows.
      ahead: number of batches whose rows `prepare` pulls in one request; 0 to pull nothing ahead.
      trained: dict of table name -> the TableConfig to use; None to make them from `config` and `seed`.
      scale: factor that scales the learning rates of the job; None for the number of workers.
      uncached: whether each lookup reads the store, for an evaluation within training.
      in_order: whether identical runs train the rows identically: workers that share rows train with `HostGradients`,
        and if there are several copies, all workers push at the same step, in rank order, and wait for each other.
      first_step: the global step at which training starts; None for an evaluation.

    Attributes:
      rows: dict of table name -> `WorkerRows`.
      new_keys: the shares of keys that were never trained.
      lookup_latency: OpsEmbeddingLookup: time of each request for rows or, without a service, each lookup in a table.
      local_latency: OpsLocalLookup: time of each lookup in a copy of the service's rows that needs no request.
      push_latency: OpsPushGrad: time of each request that sends changes or, without a service, each update of a table.
      sync_latency: OpsParameterSync: time of each sync of all tables.
      sync_seconds: duration of the last sync.
      is_strict: whether syncs are collectives, after which lookups see the pushes of all copies.
      copies_of: the owner of each copy, `host` or `worker`; None if there are no copies.
    """

    def __init__(
        self,
        features: FedFeatures,
        config: EmbeddingConfig,
        seed: int,
        store: Store,
        ahead: int = 0,
        *,
        trained: Mapping[str, TableConfig] | None = None,
        scale: float | None = None,
        uncached: bool = False,
        in_order: bool = False,
        first_step: int | None = None,
    ) -> None:
        self._ahead, self._store = ahead, store
        self._inputs = {
            table.name: TableInputs(table, features.segments[table.name])
            for table in features.spec.tables
            if table.name in features.segments
        }
        self._is_of_host = store.host_memory is not None and not uncached
        self.local_latency = Latency("OpsLocalLookup")
        self.lookup_latency = Latency(PHASES["lookup"].operation)
        whose = "the host" if self._is_of_host else ""  # One worker pushes and syncs for its host.
        self.push_latency, self.sync_latency = (Latency(PHASES[phase].operation, whose) for phase in ("update", "sync"))
        names = (name for inputs in self._inputs.values() for name in inputs.features)
        self.new_keys = NewKeys(names, distributed.is_chief(), distributed.is_chief() and first_step is not None)
        configs = {
            name: inputs.config(config, features.spec.limits_of(name), seed) for name, inputs in self._inputs.items()
        }
        if trained is not None:
            configs = {name: as_trained(table_config, trained) for name, table_config in configs.items()}
        size = distributed.size()
        hosts = distributed.hosts() if size > 1 and not uncached else 1
        latencies = {"lookup_latency": self.lookup_latency, "push_latency": self.push_latency}
        self.rows = open_rows(store, config, configs, hosts=hosts, uncached=uncached, **latencies)
        self._copies = {name: rows for name, rows in self.rows.items() if rows.are_copies}
        self._dense = follow_steps(config, self.rows.values(), first_step)
        # If there are copies, the log also reports an interval in which no lookup needed the service.
        self.lookup_latency.shows_none = bool(self._copies)
        self._is_syncer = any(rows.is_synced_here for rows in self._copies.values())
        self.copies_of = ("host" if self._is_of_host else "worker") if self._copies else None
        merge, copies = config.sync_merge if self._copies else "sum", hosts if self._is_of_host else size
        merge_factor = merging.gradient_factor(config.row_optimizer.name, merge, size, scale or size, copies)
        self.is_strict = in_order and (self.copies_of == "worker" or hosts > 1)
        adds_up = in_order and size > 1 and self.copies_of != "worker"
        self._workers = HostGradients() if adds_up else OwnGradients()
        self._gradients = RowGradients(merge_factor, config.l2, config.clip_norm, self._workers)
        # The sync of a host may use the cores of all its workers. On one worker's cores alone, it would delay that
        # worker, and the other workers would wait for it.
        cores = distributed.host_cores() if self._is_of_host else None
        self._background = Background("the sync of the embedding rows", cores=cores)
        self._each_table = EachTable(self._copies, cores)
        self.sync_seconds, self._overlap = 0.0, config.overlap_lookup
        self._turns = RowsInTurn(self.look_up, (), training=False)

    def begin(self) -> None:
        """Prepares the rows. Call this before the first lookup, after the rows of a checkpoint were restored."""
        for rows in self.rows.values():
            rows.begin()

    def feed(self, batches: Iterable[tuple[Batch, Lookups]], training: bool) -> RowsInTurn:
        """Returns an object that reads batches from `prepare` and looks up their rows. Closes the previous object.

        In training, a new row is created for each key without a row, and `overlap_lookup` applies.
        """
        self._turns.close()
        overlap = training and self._overlap
        self._turns = RowPipeline(self.look_up, batches) if overlap else RowsInTurn(self.look_up, batches, training)
        return self._turns

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
            since: dict[str, int | None] = self._pull_ahead([lookups for _, lookups in prepared]) if ahead else {}
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
            with rows.locked():
                feed |= inputs.gather(lookup, rows.rows, slots)
                self.new_keys.look(inputs.features, rows, lookup, slots, is_due)
            if rows.totals().misses == asked:  # A request measures its own latency.
                latency = self.local_latency if rows.are_copies else self.lookup_latency
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
        for part in self._gradients.take(step):
            if self._workers.trains or part.rows in self._dense:  # Every worker counts the steps of a dense optimizer.
                with contextlib.nullcontext() if part.rows.are_copies else self.push_latency.measure():
                    part.rows.apply_gradients(part.slots, part.sums, step.learning_rate)
        self._workers.end_step()

    def sync(self) -> None:
        """Syncs this worker's copies with the service: as a collective if strict, otherwise in the background.

        Waits for the previous sync if it is still running, and raises its error if it failed.
        """
        self._turns.finish_pending()
        if self.is_strict:
            self._timed(lambda: self._sync_strictly(lambda rows: rows.refresh()))
        elif self._is_syncer:
            self._background.wait()
            for rows in self._copies.values():
                rows.begin_window()
            sync = functools.partial(self._each_table.call, lambda _, rows: rows.sync_window())
            self._background.start(lambda: self._timed(sync))

    def look(self) -> None:
        """Raises an error if the service has ended or the background sync has failed. Does not wait."""
        self._store.look()
        if not self._background.is_busy:
            self._background.wait()

    def flush(self) -> None:
        """Syncs, and returns when the store has exactly all changes of this worker and no row has missed a step.

        A collective with `HostRows`, with a dense optimizer and if `is_strict`.
        """
        if self._dense:
            self._turns.finish_pending()
            distributed.barrier("rows_stepped")  # A row that another worker is about to update has not missed a step.
        self.catch_up()
        if self.is_strict:
            self._sync_strictly(lambda rows: rows.forget())  # A training that resumes has no copies either.
            return
        self._background.wait()
        self._meet_on_hosts("host_rows_stepped")
        self._each_table.call(lambda _, rows: rows.flush())
        self._meet_on_hosts("host_rows_flushed")

    def catch_up(self) -> None:
        """Finishes the updates of the steps so far. Rows of a dense optimizer also make the steps that they missed."""
        self._turns.finish_pending()
        for rows in self._dense if distributed.local_rank() == 0 else ():
            rows.flush()

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
        self._background.close()
        self._each_table.close()

    @property
    def latencies(self) -> list[Latency]:
        return [self.lookup_latency, self.local_latency, self.push_latency, self.sync_latency]

    def totals(self) -> RowTotals:
        return sum((rows.totals() for rows in self._copies.values()), RowTotals())

    def lock_times(self) -> LockTimes:
        return sum((rows.lock_times for rows in self.rows.values()), LockTimes())

    def _pull_ahead(self, group: Sequence[Mapping[str, Lookup]]) -> dict[str, int | None]:
        return self._each_table.call(
            lambda name, rows: rows.pull_ahead(distinct([lookups[name].unique for lookups in group]))
        )

    def _timed(self, sync: Callable[[], object]) -> None:
        before = self.sync_latency.total_seconds
        with self.sync_latency.measure():
            sync()
        self.sync_seconds = self.sync_latency.total_seconds - before

    def _meet_on_hosts(self, what: str) -> None:
        if self._is_of_host:
            distributed.barrier(what)

    def _sync_strictly(self, then: Callable[[WorkerRows], None]) -> None:
        """Pushes in rank order, so that the service adds the changes in a fixed order, and then calls `then`."""
        for pusher in range(distributed.size()):
            if pusher == distributed.rank() and self._is_syncer:
                self._each_table.call(lambda _, rows: rows.flush())
            distributed.barrier("strict_sync")
        if self._is_syncer:
            self._each_table.call(lambda _, rows: then(rows))
        self._meet_on_hosts("host_rows_refreshed")
