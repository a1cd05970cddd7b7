"""The tables behind a model's embedding inputs: looked up before a step, trained after it."""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import time

from ctr_trainer.embedding.index.key_kernels import distinct
from ctr_trainer.embedding.memory.row_lock import LockTimes
from ctr_trainer.embedding.store.worker_rows import RowTotals
from ctr_trainer.embedding.worker import merging
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.estimator.open_rows import as_trained, open_rows
from ctr_trainer.estimator.table_inputs import RowGradients, TableGradients, TableInputs
from ctr_trainer.hooks.input_hook import RowPipeline, RowsInTurn
from ctr_trainer.measuring.latency import Latency
from ctr_trainer.measuring.phases import operation
from ctr_trainer.processes import hardware
from ctr_trainer.processes.background import Background
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.row_turns import row_turns


@dataclasses.dataclass(frozen=True)
class LookedUp:
    """A batch whose rows were looked up.

    Attributes:
      feed: feed_dict of the embedding inputs.
      parts: by table, (`WorkerRows`, `TableInputs`, `Lookup`, slots int64[U]).
    """

    feed: dict
    parts: list


class Embeddings:
    """The rows that a model's embedding inputs take, by table.

    A lone worker trains the store's own tables, and so do workers that share them in memory (`SharedTable`). Others
    train copies and `sync` them: the workers of a host one copy together (`HostRows`), or each worker its own
    (`RowCache`). Between two syncs a copy does not see what was done to the others.

    Staleness of a row that a step reads, in steps of this worker, behind what the service had of other copies: below N,
    the steps between two syncs, plus the steps that the sync under way has taken so far (below N, as the next sync
    waits for it; 0 if `strict_sync`), plus the batches by which its lookup was pulled ahead, at most twice
    `prefetch_batches`: those that wait and those in the making (0 if `strict_sync`), plus the one of `RowPipeline`.

    Threads: all methods are the training thread's, but for `prepare`, which may run ahead in one of its own, and those
    that `RowPipeline` runs in its one.

    Args:
      features: `FedFeatures` after the model was built, or any object with its `spec` and `segments`.
      config: `EmbeddingConfig`.
      seed: of new rows.
      store: of `open_store`.
      ahead: of how many batches at a time `prepare` pulls the rows, where it runs in a thread of its own; 0 for none.
      trained: by table name, the TableConfig to use in place of what `config` and `seed` say.
      scale: by which the job's learning rates grow with its workers; None for as many as there are.
      uncached: whether each lookup reads the store, for an evaluation within training: it keeps nothing that the next
        one would find stale.
      in_order: whether workers use shared rows by `ByRank`, and push one after another at a strict sync.

    Attributes:
      rows: by table name, its `WorkerRows`.
      lookup_latency: OpsEmbeddingLookup, each request for rows until the service's answer. Without a service, each
        lookup in the table.
      local_latency: OpsLocalLookup, each lookup in a copy of the service's rows that needs no request.
      push_latency: OpsPushGrad, each request by which the service takes changes. Without a service, each update of the
        table.
      sync_latency: OpsParameterSync, of each sync of all tables from its start to its end.
      sync_seconds: how long the last one took.
      is_strict: whether syncs are collectives; see `EmbeddingConfig.strict_sync`.
      copies_of: whose copies of the rows are trained: `host`, or `worker` for its own; None of the tables themselves.
    """

    def __init__(
        self, features, config, seed, store, ahead=0, trained=None, scale=None, uncached=False, in_order=False
    ):
        self.is_strict, self._ahead, self._store = config.strict_sync, ahead, store
        self._inputs = {
            table.name: TableInputs(table, features.segments[table.name])
            for table in features.spec.tables
            if table.name in features.segments
        }
        self._is_of_host = store.host_memory is not None and not uncached
        self.local_latency = Latency("OpsLocalLookup")
        self.lookup_latency = Latency(operation("lookup"))
        whose = "the host" if self._is_of_host else ""  # One worker pushes and syncs for all of them.
        self.push_latency, self.sync_latency = (Latency(operation(phase), whose) for phase in ("update", "sync"))
        configs = {
            name: inputs.config(config, features.spec.limits_of(name), seed) for name, inputs in self._inputs.items()
        }
        if trained is not None:
            configs = {name: as_trained(table_config, trained) for name, table_config in configs.items()}
        self.rows = open_rows(
            store,
            config,
            configs,
            lookup_latency=self.lookup_latency,
            push_latency=self.push_latency,
            uncached=uncached,
        )
        self._copies = {name: rows for name, rows in self.rows.items() if rows.are_copies}
        # With a service the log says also that no lookup went there.
        self.lookup_latency.shows_none = bool(self._copies)
        self._is_syncer = any(rows.is_synced_here for rows in self._copies.values())
        self.copies_of = ("host" if self._is_of_host else "worker") if self._copies else None
        # Workers that train the same rows add up, like a sync after each step.
        merge, size = config.sync_merge if self._copies else "sum", distributed.size()
        sharing = distributed.local_size() if self._is_of_host else 1
        merge_factor = merging.gradient_factor(config.optimizer.name, merge, size, scale or size, sharing)
        self._gradients = RowGradients(merge_factor, config.l2, config.clip_norm)
        # One worker syncs for all of its host. On its own core alone that would hold it up, and so the others, which
        # wait for it: two workers on two cores were 1.05 times as fast with syncs on either core.
        cores = distributed.host_cores() if self._is_of_host else None
        self._background = Background("the sync of the embedding rows", cores=cores)
        # The requests of all tables are under way at once, those of a sync and of pulling ahead beside it.
        self._threads = None
        if len(self._copies) > 1:
            on_cores = dict(initializer=hardware.run_on, initargs=(cores,))
            self._threads = concurrent.futures.ThreadPoolExecutor(2 * len(self._copies), **on_cores)
        self.sync_seconds = 0.0
        self._overlap, self._in_order = config.overlap_lookup, in_order
        several = distributed.size() > 1 and self.copies_of != "worker" and not uncached
        self._row_turns = row_turns(by_rank=in_order and several)
        self._turns = RowsInTurn(self, (), training=False)

    def begin(self):
        """To be called before the first lookup, when the store has the rows that there are to begin with."""
        for rows in self.rows.values():
            rows.begin()

    def feed(self, batches, training):
        """Returns `RowsInTurn` or `RowPipeline`, which reads batches and looks their rows up; ends what fed before.

        Args:
          batches: iterable of (`Batch`, lookups), of `prepare`.
          training: whether keys without a row get one, and `overlap_lookup` counts.
        """
        self._turns.close()
        overlap = training and self._overlap
        self._turns = RowPipeline(self, batches) if overlap else RowsInTurn(self, batches, training)
        return self._turns

    def prepare(self, batches):
        """Yields (batch, lookups by table): the part of a lookup that can be done ahead of the step.

        The rows of `ahead` batches are pulled in one request. If no row can be missing here, nothing is pulled, and
        the time to merge the keys of these batches is saved: a sixth of a step of two workers.
        """
        batches = iter(batches)
        while True:
            ahead = self._ahead if any(rows.asks for rows in self.rows.values()) else 0
            group = list(itertools.islice(batches, max(ahead, 1)))
            if not group:
                return
            prepared = [(batch, self._lookups(batch)) for batch in group]
            since = self._pull_ahead([lookups for _, lookups in prepared]) if ahead else {}
            for batch, lookups in prepared:
                yield batch, {name: (lookup, since.get(name)) for name, lookup in lookups.items()}

    def look_up(self, lookups, create):
        """Returns the LookedUp.

        Args:
          create: whether a key that has no row gets one (training), or zeros (evaluation and prediction).
        """
        with self._row_turns.to_look_up() if create else contextlib.nullcontext():
            return self._look_up(lookups, create)

    def add_gradients(self, looked_up, gradients, weight=1.0):
        """Adds the gradients of a batch's rows to those of the step that `apply_gradients` ends.

        Args:
          looked_up: the batch's, of `look_up`.
          gradients: by the name of the embedding input, float32 of its shape; of the loss as the graph has it. Rows
            of inputs that the loss does not depend on take a step of gradient zero. `merging` says what they count for.
          weight: see `row_step.weighed`.
        """
        parts = []
        for rows, inputs, lookup, slots in looked_up.parts:
            sums = inputs.sum_gradients(lookup, gradients)
            parts.append(TableGradients(rows, lookup.unique, slots, sums))
        self._gradients.add(parts, weight)

    def apply_gradients(self, looked_up, gradients, weight, step):
        """One sparse optimizer step of a batch's rows, and of those whose gradients were added before.

        Args:
          looked_up, gradients, weight: as for `add_gradients`.
          step: `RowStep`.
        """
        self.add_gradients(looked_up, gradients, weight)
        parts = self._gradients.take(step)
        with self._row_turns.to_step():
            for part in parts:
                with contextlib.nullcontext() if part.rows.are_copies else self.push_latency.measure():
                    part.rows.apply_gradients(part.slots, part.sums, step.learning_rate)

    def sync(self):
        """Brings this worker's copies and the service together: a collective if strict, else beside the steps to come.

        Waits for the sync before, if that is still under way, and raises what it raised.
        """
        self._turns.finish_pending()
        if self.is_strict:
            self._timed(self._sync_strictly)
        elif self._is_syncer:
            self._background.wait()
            for rows in self._copies.values():
                rows.begin_window()
            self._background.start(lambda: self._timed(self._sync_window))

    def look(self):
        """Raises what ended the sync beside the steps, or that the service has ended, as soon as either is known."""
        self._store.look()
        if not self._background.is_busy:
            self._background.wait()

    def flush(self):
        """As `sync`, but returns when the service has, to the bit, all that this worker's steps changed.

        A collective if the workers of a host train one copy of the rows.
        """
        self._turns.finish_pending()
        if self.is_strict:
            self._sync_strictly()
            return
        self._background.wait()
        self._meet_on_hosts("host_rows_stepped")
        self._on_all(lambda _, rows: rows.flush())
        self._meet_on_hosts("host_rows_flushed")

    def close(self):
        """Waits for the sync under way, whatever becomes of it; for a training that ends early."""
        self._background.close()
        if self._threads:
            self._threads.shutdown()

    @property
    def latencies(self) -> list[Latency]:
        """The latencies of the operations on rows."""
        return [self.lookup_latency, self.local_latency, self.push_latency, self.sync_latency]

    def totals(self):
        """Returns the RowTotals since the start, of all tables; 0 without a service."""
        return sum((rows.totals() for rows in self._copies.values()), RowTotals())

    def lock_times(self):
        """Returns the LockTimes since the start, of all tables and of this worker's threads."""
        return sum((rows.lock_times for rows in self.rows.values()), LockTimes())

    def _look_up(self, lookups: dict[str, tuple[Lookup, int | None]], create: bool) -> LookedUp:
        """As `look_up`, whenever it is called."""
        feed, parts = {}, []
        for name, rows in self.rows.items():
            lookup, since = lookups[name]
            began, asked = time.perf_counter(), rows.totals().misses
            if create:  # A strict lookup sees every push before it, pulled ahead or not.
                slots = rows.find_or_create(lookup.unique, None if self.is_strict else since)
            else:
                slots = rows.find(lookup.unique)
            with rows.locked():
                feed |= self._inputs[name].gather(lookup, rows.rows, slots)
            if rows.totals().misses == asked:  # A request measures itself.
                latency = self.local_latency if rows.are_copies else self.lookup_latency
                latency.record(1e6 * (time.perf_counter() - began))
            parts.append((rows, self._inputs[name], lookup, slots))
        return LookedUp(feed, parts)

    def _lookups(self, batch):
        return {name: inputs.lookup(batch) for name, inputs in self._inputs.items()}

    def _pull_ahead(self, group):
        """Returns by table what `WorkerRows.pull_ahead` returns for the keys of a group of batches."""

        def pull_ahead(name, rows):
            return rows.pull_ahead(distinct([lookups[name].unique for lookups in group]))

        return self._on_all(pull_ahead)

    def _timed(self, sync):
        before = self.sync_latency.total_seconds
        with self.sync_latency.measure():
            sync()
        self.sync_seconds = self.sync_latency.total_seconds - before

    def _sync_window(self):
        self._on_all(lambda _, rows: rows.sync_window())

    def _meet_on_hosts(self, what):
        """Waits until all workers have come, if those of a host train one copy of the rows."""
        if self._is_of_host:
            distributed.barrier(what)

    def _sync_strictly(self):
        for pusher in range(distributed.size()) if self._in_order else [distributed.rank()]:
            if pusher == distributed.rank():
                self._on_all(lambda _, rows: rows.push())
            distributed.barrier("strict_sync")
        self._on_all(lambda _, rows: rows.refresh())

    def _on_all(self, call):
        """Returns {name: call(name, rows)} of all copies at once; waits for all of them before it raises."""
        if self._threads is None:
            return {name: call(name, rows) for name, rows in self._copies.items()}
        futures = {name: self._threads.submit(call, name, rows) for name, rows in self._copies.items()}
        concurrent.futures.wait(futures.values())
        return {name: future.result() for name, future in futures.items()}
