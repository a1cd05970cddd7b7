"""The tables behind a model's embedding inputs: looked up before a step, trained after it."""

import concurrent.futures
import contextlib
import itertools
import math
import os

from ctr_trainer import distributed
from ctr_trainer.embedding.background import Background
from ctr_trainer.embedding.cache import Cache
from ctr_trainer.embedding.client import ServiceClient
from ctr_trainer.embedding.config import TableConfig
from ctr_trainer.embedding.guard import Guard
from ctr_trainer.embedding.local_store import LocalStore
from ctr_trainer.embedding.lookup import Lookup, distinct
from ctr_trainer.embedding.process import Watch, local_services
from ctr_trainer.embedding.security import ClientSecurity
from ctr_trainer.errors import UserError
from ctr_trainer.features.tensors import EMBEDDING, LINEAR
from ctr_trainer.latency import Latency

_KINDS = (EMBEDDING, LINEAR)


@contextlib.contextmanager
def open_store(config, model_dir, read_only=False):
    """Gives the store that `config.service` names; local services that it started end with the block.

    A collective where there are several workers.

    Raises:
      UserError: `auto` was asked for workers on several hosts, or the service does not start.
    """
    if config.service != "auto":
        with contextlib.closing(_client(config, config.service.split(","), read_only)) as client:
            yield client
        return
    if distributed.size() == 1:
        yield LocalStore()
        return
    if distributed.local_size() != distributed.size():
        raise UserError(
            "--embedding_service=auto starts a service that only workers on its own host reach; start "
            "`python -m ctr_trainer serve` on a host that all of them reach and name it: --embedding_service=host:port"
        )
    with contextlib.ExitStack() as stack:
        started, watches = None, []
        if distributed.is_chief():
            os.makedirs(model_dir, exist_ok=True)
            watches = stack.enter_context(local_services(config.service_shards, model_dir, config.timeout))
            started = [(service.address, service.pid, service.log_file) for service in watches]
        started = distributed.broadcast_object(started, "embedding_services")
        if not watches:
            watches = [stack.enter_context(contextlib.closing(Watch(pid, log))) for _, pid, log in started]
        ended = [watch.ended for watch in watches]
        client = _client(config, [address for address, _, _ in started], read_only, ended)
        yield stack.enter_context(contextlib.closing(client))
        # The others may still be talking to the service that rank 0 is about to stop.
        distributed.barrier("embedding_service_close")


def _client(config, addresses, read_only, ended=()):
    """-> a client, guarded where the workers go back to the last checkpoint by themselves."""
    own = config.service == "auto"  # A service that we started on loopback asks for nothing.
    security = ClientSecurity() if own else ClientSecurity.read(*config.security_files)
    client = ServiceClient(addresses, config.timeout, security, read_only, ended)
    return Guard(client) if config.service_restarts and not read_only else client


class Embeddings:
    """The rows that a model's embedding inputs take, by table.

    A lone worker trains the store's own tables. Several train their own copies (`embedding.cache.Cache`) and `sync`
    them; between two syncs a copy does not see the other workers' updates.

    Staleness of a row that a step reads, in steps of this worker, behind what the service had of the others: below N,
    the steps between two syncs, plus the steps that the sync under way has taken so far (below N, as the next sync
    waits for it; 0 if `strict_sync`), plus the batches by which its lookup was prefetched, at most twice
    `prefetch_batches`: those that wait and those in the making (0 if `strict_sync`).

    Threads: all methods are the training thread's, but for `prepare`, which may run ahead in one of its own.

    Args:
      features: `FedFeatures` after the model was built, or any object with its `spec` and `segments`.
      config: `EmbeddingConfig`.
      seed: of new rows.
      store: of `open_store`.
      ahead: of how many batches at a time `prepare` pulls the rows, where it runs in a thread of its own; 0 for none.
      trained: by table name, the TableConfig to use in place of what `config` and `seed` say.

    Attributes:
      sources: by table name, its `Cache` or, of a lone worker, its `Table`.
      sync_latency: OpsParameterSync, of each sync from its start to its end.
      sync_seconds: how long the last one took.
    """

    def __init__(self, features, config, seed, store, ahead=0, trained=None):
        self._features, self._strict, self._ahead = features, config.strict_sync, ahead
        self._tables = [table for table in features.spec.tables if table.name in features.segments]
        self.sources = {}
        self.sync_latency = Latency("OpsParameterSync")
        for table in self._tables:
            table_config = _table_config(table, features, config, seed)
            if trained is not None:
                table_config = _as_trained(table_config, trained)
            store.create_table(table_config)
            if isinstance(store, LocalStore):
                self.sources[table.name] = store.tables[table.name]
            else:
                name, compression = f"rank{distributed.rank()}", config.sync_compression
                self.sources[table.name] = Cache(store, table_config, name, compression=compression)
        self._caches = {name: source for name, source in self.sources.items() if isinstance(source, Cache)}
        self._background = Background("the sync of the embedding rows")
        # The requests of all tables are under way at once, those of a sync and of a prefetch beside it.
        several = len(self._caches) > 1
        self._threads = concurrent.futures.ThreadPoolExecutor(2 * len(self._caches)) if several else None
        self.sync_seconds = 0.0
        self._step = []

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
        """-> feed_dict of the embedding inputs.

        Args:
          create: whether a key that has no row gets one (training), or zeros (evaluation and prediction).
        """
        feed, self._step = {}, []
        for name, source in self.sources.items():
            lookup, since = lookups[name]
            if not create:
                slots = source.find(lookup.unique)
            elif since is None or self._strict:  # A strict lookup sees every push before it, prefetched or not.
                slots = source.find_or_create(lookup.unique)
            else:
                slots = source.find_or_create(lookup.unique, since)
            tensors, start = [], 0
            with source.lock:
                for kind, dim in zip(self._kinds(name), source.config.dims, strict=True):
                    tensors.append(self._features.segments[name][kind])
                    feed[tensors[-1]] = lookup.gather(source.rows, slots, start, dim)
                    start += dim
            self._step.append((source, lookup, slots, tensors))
        return feed

    def apply_gradients(self, gradients, learning_rate):
        """One sparse optimizer step of the rows last looked up.

        Args:
          gradients: by the name of the embedding input, float32[B, F, dim]; of the loss as the graph has it.
          learning_rate: float.
        """
        for source, lookup, slots, tensors in self._step:
            sums = [lookup.sum_gradients(gradients[tensor.name]) for tensor in tensors]
            source.apply_gradients(slots, sums, learning_rate)

    def sync(self):
        """Brings this worker's copies and the service together: a collective if strict, else beside the steps to come.

        Waits for the sync before, if that is still under way, and raises what it raised.
        """
        if self._strict:
            self._timed(self._sync_strictly)
        elif self._caches:
            self._background.wait()
            for cache in self._caches.values():
                cache.begin_window()
            self._background.start(lambda: self._timed(self._exchange))

    def flush(self):
        """As `sync`, but returns when the service has, to the bit, all that this worker's steps changed."""
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

    def hit_rate(self):
        """-> the share of looked-up keys that needed no request to the service; 1 where there is none."""
        hits, misses = (sum(getattr(cache, name) for cache in self._caches.values()) for name in ("hits", "misses"))
        return hits / (hits + misses) if hits + misses else 1.0

    def _lookups(self, batch):
        lookups = {}
        for table in self._tables:
            bags = [
                (batch.bags[feature.name].values, batch.bags[feature.name].splits, feature.combiner == "mean")
                for feature in table.bags
            ]
            lookups[table.name] = Lookup(batch.keys[table.name], bags)
        return lookups

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

    def _kinds(self, name):
        return [kind for kind in _KINDS if kind in self._features.segments[name]]


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


def _table_config(table, features, config, seed):
    """-> the TableConfig of a TableFeatures: an embedding, a linear weight, or both, as the model asked."""
    segments, limits = features.segments[table.name], features.spec.limits_of(table.name)
    dims, scales = [], []
    if EMBEDDING in segments:
        dims.append(table.dim)
        scales.append(config.init_stddev * math.sqrt(3))  # a uniform distribution on +-s has the deviation s / sqrt(3)
    if LINEAR in segments:
        dims.append(1)
        scales.append(0.0)
    return TableConfig(
        name=table.name,
        dims=tuple(dims),
        init_scales=tuple(scales),
        optimizer=config.optimizer,
        initial_accumulator=config.initial_accumulator,
        seed=seed,
        min_frequency=limits.min_frequency,
        max_rows=limits.max_rows,
        eviction=limits.eviction,
        ttl_steps=limits.ttl_steps,
    )
