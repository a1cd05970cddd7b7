"""The tables behind a model's embedding inputs: looked up before a step, trained after it."""

import contextlib
import math
import os
import pathlib

from ctr_trainer import distributed
from ctr_trainer.embedding.cache import Cache
from ctr_trainer.embedding.client import ServiceClient
from ctr_trainer.embedding.config import TableConfig
from ctr_trainer.embedding.lookup import Lookup
from ctr_trainer.embedding.process import LocalService
from ctr_trainer.embedding.store import LocalStore
from ctr_trainer.errors import UserError
from ctr_trainer.features.tensors import EMBEDDING, LINEAR

_KINDS = (EMBEDDING, LINEAR)


@contextlib.contextmanager
def open_store(config, model_dir):
    """Gives the store that `config.service` names; a local service that it started ends with the block.

    A collective where there are several workers.

    Raises:
      UserError: `auto` was asked for workers on several hosts, or the service does not start.
    """
    if config.service != "auto":
        token = pathlib.Path(config.token_file).read_text().strip() if config.token_file else None
        with contextlib.closing(ServiceClient(config.service.split(","), config.timeout, token)) as client:
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
        address = None
        if distributed.is_chief():
            os.makedirs(model_dir, exist_ok=True)
            log_file = os.path.join(model_dir, "service.log")
            address = stack.enter_context(LocalService(model_dir, log_file, config.timeout)).address
        address = distributed.broadcast_object(address, "embedding_service_address")
        yield stack.enter_context(contextlib.closing(ServiceClient([address], config.timeout)))
        # The others may still be talking to the service that rank 0 is about to stop.
        distributed.barrier("embedding_service_close")


class Embeddings:
    """The rows that a model's embedding inputs take, by table.

    A lone worker trains the store's own tables. Several train their own copies (`embedding.cache.Cache`) and `sync`
    them; between two syncs a copy does not see the other workers' updates.

    Args:
      features: `FedFeatures` after the model was built, or any object with its `spec` and `segments`.
      config: `EmbeddingConfig`.
      seed: of new rows.
      store: of `open_store`.
    """

    def __init__(self, features, config, seed, store):
        self._features = features
        self._tables = [table for table in features.spec.tables if table.name in features.segments]
        self.sources = {}
        for table in self._tables:
            table_config = _table_config(table, features.segments[table.name], config, seed)
            store.create_table(table_config)
            if isinstance(store, LocalStore):
                self.sources[table.name] = store.tables[table.name]
            else:
                self.sources[table.name] = Cache(store, table_config, f"rank{distributed.rank()}")
        self._step = []

    def prepare(self, batch):
        """-> (batch, lookups by table): the part of a lookup that needs no table, safe to run ahead in a thread."""
        lookups = {}
        for table in self._tables:
            bags = [
                (batch.bags[feature.name].values, batch.bags[feature.name].splits, feature.combiner == "mean")
                for feature in table.bags
            ]
            lookups[table.name] = Lookup(batch.keys[table.name], bags)
        return batch, lookups

    def look_up(self, lookups, create):
        """-> feed_dict of the embedding inputs.

        Args:
          create: whether a key that has no row gets one (training), or zeros (evaluation and prediction).
        """
        feed, self._step = {}, []
        for name, source in self.sources.items():
            lookup = lookups[name]
            slots = source.find_or_create(lookup.unique) if create else source.find(lookup.unique)
            tensors, start = [], 0
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

    def sync(self, strict):
        """Brings this worker's copies and the service together. A collective if `strict`."""
        if not strict:
            for source in self.sources.values():
                source.sync()
            return
        for source in self.sources.values():
            source.push()
        distributed.barrier("strict_sync")
        for source in self.sources.values():
            source.refresh()

    def hit_rate(self):
        """-> the share of looked-up keys that needed no request to the service; 1 where there is none."""
        caches = [source for source in self.sources.values() if isinstance(source, Cache)]
        hits, misses = sum(cache.hits for cache in caches), sum(cache.misses for cache in caches)
        return hits / (hits + misses) if hits + misses else 1.0

    def _kinds(self, name):
        return [kind for kind in _KINDS if kind in self._features.segments[name]]


def _table_config(table, segments, config, seed):
    """-> the TableConfig of a TableFeatures: an embedding, a linear weight, or both, as the model asked."""
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
    )
