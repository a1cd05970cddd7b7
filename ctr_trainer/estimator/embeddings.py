"""The tables behind a model's embedding inputs: looked up before a step, trained after it."""

import concurrent.futures
import contextlib
import dataclasses
import itertools

from ctr_trainer import distributed
from ctr_trainer.background import Background
from ctr_trainer.embedding import merging
from ctr_trainer.embedding.cache import Cache
from ctr_trainer.embedding.distinct import distinct
from ctr_trainer.embedding.local_store import LocalStore
from ctr_trainer.embedding.store_reader import StoreReader
from ctr_trainer.errors import UserError
from ctr_trainer.estimator.row_gradients import RowGradients, SourceGradients
from ctr_trainer.estimator.table_inputs import TableInputs
from ctr_trainer.latency import Latency


@dataclasses.dataclass(frozen=True)
class LookedUp:
    """A batch whose rows were looked up.

    Attributes:
      feed: feed_dict of the embedding inputs.
      parts: by table, (source, `TableInputs`, `Lookup`, slots int64[U]).
    """

    feed: dict
    parts: list


class Embeddings:
    """The rows that a model's embedding inputs take, by table.

    A lone worker trains the store's own tables, and so do workers that share them in memory (`SharedTable`). Others
    train their own copies (`embedding.cache.Cache`) and `sync` them; between two syncs a copy does not see the other
    workers' updates.

    Staleness of a row that a step reads, in steps of this worker, behind what the service had of the others: below N,
    the steps between two syncs, plus the steps that the sync under way has taken so far (below N, as the next sync
    waits for it; 0 if `strict_sync`), plus the batches by which its lookup was prefetched, at most twice
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

    Attributes:
      sources: by table name, its `Cache`, `StoreReader` or, of a lone worker, its `Table`.
      lookup_latency: OpsEmbeddingLookup, of each lookup as the service answers its request; where the rows are in this
        process, or in memory that it shares, of each lookup in the table.
      push_latency: OpsPushGrad, of each request by which the service takes changes; where the rows are here, of each
        update of the table.
      sync_latency: OpsParameterSync, of each sync of all tables from its start to its end.
      sync_seconds: how long the last one took.
      settle: f(), called before a sync or a flush: ends what is under way elsewhere.
    """

    def __init__(self, features, config, seed, store, ahead=0, trained=None, scale=None, uncached=False):
        self._strict, self._ahead = config.strict_sync, ahead
        self._inputs = {
            table.name: TableInputs(table, features.segments[table.name])
            for table in features.spec.tables
            if table.name in features.segments
        }
        self.sources = {}
        self.lookup_latency, self.push_latency = Latency("OpsEmbeddingLookup"), Latency("OpsPushGrad")
        self.sync_latency = Latency("OpsParameterSync")
        self._is_local = isinstance(store, LocalStore)
        configs = {
            name: inputs.config(config, features.spec.limits_of(name), seed) for name, inputs in self._inputs.items()
        }
        if trained is not None:
            configs = {name: _as_trained(table_config, trained) for name, table_config in configs.items()}
        _create_tables(store, configs.values())
        for name, table_config in configs.items():
            if self._is_local:
                self.sources[name] = store.tables[name]
            elif uncached:
                self.sources[name] = StoreReader(store, table_config)
            else:
                shares = merging.shares(table_config, config.sync_merge, distributed.size())
                worker, latencies = f"rank{distributed.rank()}", (self.lookup_latency, self.push_latency)
                self.sources[name] = Cache(
                    store, table_config, worker, *latencies, compression=config.sync_compression, shares=shares
                )
        self._caches = {name: source for name, source in self.sources.items() if isinstance(source, Cache)}
        # Workers that train the same rows add up, like a sync after each step.
        merge, size = config.sync_merge if self._caches else "sum", distributed.size()
        self._factor = merging.gradient_factor(config.optimizer, merge, size, scale or size)
        self._background = Background("the sync of the embedding rows")
        # The requests of all tables are under way at once, those of a sync and of a prefetch beside it.
        several = len(self._caches) > 1
        self._threads = concurrent.futures.ThreadPoolExecutor(2 * len(self._caches)) if several else None
        self.sync_seconds = 0.0
        self.settle = lambda: None
        self._gradients = RowGradients(config.l2, config.clip_norm)

    def prepare(self, batches):
        """Yields (batch, lookups by table): the part of a lookup that can be done ahead of the step.

        With `ahead`, the keys of so many batches are pulled in one request.
        """
        batches = iter(batches)
        while group := list(itertools.islice(batches, max(self._ahead, 1))):
            prepared = [(batch, self._lookups(batch)) for batch in group]
            since = self._prefetch([lookups for _, lookups in prepared]) if self._ahead else {}
            for batch, lookups in prepared:
                yield batch, {name: (lookup, since.get(name)) for name, lookup in lookups.items()}

    def look_up(self, lookups, create):
        """-> LookedUp.

        Args:
          create: whether a key that has no row gets one (training), or zeros (evaluation and prediction).
        """
        feed, parts = {}, []
        for name, source in self.sources.items():
            lookup, since = lookups[name]
            with self._of_table(self.lookup_latency):
                if not create:
                    slots = source.find(lookup.unique)
                elif since is None or self._strict:  # A strict lookup sees every push before it, prefetched or not.
                    slots = source.find_or_create(lookup.unique)
                else:
                    slots = source.find_or_create(lookup.unique, since)
                with source.lock:
                    feed |= self._inputs[name].gather(lookup, source.rows, slots)
            parts.append((source, self._inputs[name], lookup, slots))
        return LookedUp(feed, parts)

    def add_gradients(self, looked_up, gradients, weight=1.0):
        """Adds the gradients of a batch's rows to those of the step that `apply_gradients` ends.

        Args:
          looked_up: the batch's, of `look_up`.
          gradients: by the name of the embedding input, float32 of its shape; of the loss as the graph has it. Rows
            of inputs that the loss does not depend on take a step of gradient zero. `merging` says what they count for.
          weight: what they are multiplied by.
        """
        parts = []
        for source, inputs, lookup, slots in looked_up.parts:
            sums = inputs.sum_gradients(lookup, gradients)
            parts.append(SourceGradients(source, lookup.unique, slots, sums))
        self._gradients.add(parts, weight)

    def apply_gradients(self, looked_up, gradients, learning_rate, weight=1.0, scale=1.0):
        """One sparse optimizer step of a batch's rows, and of those whose gradients were added before.

        Args:
          looked_up, gradients, weight: as for `add_gradients`.
          learning_rate: float.
          scale: what the sum of all that was added is multiplied by.
        """
        self.add_gradients(looked_up, gradients, weight)
        for part in self._gradients.take(scale * self._factor):
            with self._of_table(self.push_latency):
                part.source.apply_gradients(part.slots, part.sums, learning_rate)

    def sync(self):
        """Brings this worker's copies and the service together: a collective if strict, else beside the steps to come.

        Waits for the sync before, if that is still under way, and raises what it raised.
        """
        self.settle()
        if self._strict:
            self._timed(self._sync_strictly)
        elif self._caches:
            self._background.wait()
            for cache in self._caches.values():
                cache.begin_window()
            self._background.start(lambda: self._timed(self._exchange))

    def flush(self):
        """As `sync`, but returns when the service has, to the bit, all that this worker's steps changed."""
        self.settle()
        if self._strict:
            self._sync_strictly()
            return
        self._background.wait()
        self._on_all(lambda _, cache: cache.flush())

    def close(self):
        """Waits for the sync under way, whatever becomes of it; for a training that ends early."""
        self._background.close()
        if self._threads:
            self._threads.shutdown()

    def totals(self):
        """-> dict of `hits`, `misses` and `bytes_synced` since the start, see `Cache`; 0 where there is no service."""
        names = ("hits", "misses", "bytes_synced")
        return {name: sum(getattr(cache, name) for cache in self._caches.values()) for name in names}

    def hit_rate(self):
        """-> the share of looked-up keys that needed no request to the service; 1 where there is none."""
        hits, misses, _ = self.totals().values()
        return hits / (hits + misses) if hits + misses else 1.0

    def _of_table(self, latency):
        """-> context manager that measures its body, an operation of a table, where no request stands for it."""
        return latency.measure() if self._is_local else contextlib.nullcontext()

    def _lookups(self, batch):
        return {name: inputs.lookup(batch) for name, inputs in self._inputs.items()}

    def _prefetch(self, group):
        """-> by table, what `Cache.prefetch` says of the keys of a group of batches."""

        def prefetch(name, cache):
            return cache.prefetch(distinct([lookups[name].unique for lookups in group]))

        return self._on_all(prefetch)

    def _timed(self, sync):
        before = self.sync_latency.total_seconds
        with self.sync_latency.measure():
            sync()
        self.sync_seconds = self.sync_latency.total_seconds - before

    def _exchange(self):
        self._on_all(lambda _, cache: cache.exchange())

    def _sync_strictly(self):
        self._on_all(lambda _, cache: cache.push())
        distributed.barrier("strict_sync")
        self._on_all(lambda _, cache: cache.refresh())

    def _on_all(self, call):
        """-> {name: call(name, cache)} of all tables at once; waits for all of them before it raises."""
        if self._threads is None:
            return {name: call(name, cache) for name, cache in self._caches.items()}
        futures = {name: self._threads.submit(call, name, cache) for name, cache in self._caches.items()}
        concurrent.futures.wait(futures.values())
        return {name: future.result() for name, future in futures.items()}


def _create_tables(store, configs):
    """Rank 0 makes the tables, then the others have them made or, where they share them, open them. A collective."""
    for chief in (True, False):
        if distributed.is_chief() == chief:
            for config in configs:
                store.create_table(config)
        distributed.barrier("tables_created")


def _as_trained(config, trained):
    """-> the TableConfig that a table was trained with.

    Raises:
      UserError: the model asks for another table or other widths than it was trained with.
    """
    found = trained.get(config.name)
    if found is None or found.dims != config.dims:
        what = ", ".join(f"{c.name} with dims {list(c.dims)}" for c in trained.values()) or "no table"
        raise UserError(
            f"the model asks for table {config.name} with dims {list(config.dims)}, and the checkpoint has {what}: "
            "name the --model and --embedding_dim that it was trained with"
        )
    return found
