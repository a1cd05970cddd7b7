"""The rows of each table, as the workers of a job train them or read them."""

import numpy as np

from ctr_trainer.embedding.memory.growable_array import PrivateMemory
from ctr_trainer.embedding.store.row_codec import find_codec
from ctr_trainer.embedding.store.store import StoreReader
from ctr_trainer.embedding.worker import merging
from ctr_trainer.embedding.worker.host_rows import HostRows
from ctr_trainer.embedding.worker.row_cache import RowCache
from ctr_trainer.estimator.open_store import copies_of_hosts
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed


def open_rows(store, config, tables, lookup_latency, push_latency, uncached=False):
    """Returns the `WorkerRows` of each table by its name. A collective.

    Args:
      store: of `open_store`; the tables are made in it.
      config: `EmbeddingConfig`.
      tables: by table name, its TableConfig.
      lookup_latency, push_latency: `Latency` of the requests of copies.
      uncached: whether each lookup reads the store.
    """
    _create_tables(store, tables.values())
    if uncached:
        return {name: store.worker_rows(table, StoreReader) for name, table in tables.items()}
    if store.host_memory is None and (distributed.size() > 1 or not copies_of_hosts(config)):
        copies = _own_copies(config, lookup_latency, push_latency)
        return {name: store.worker_rows(table, copies) for name, table in tables.items()}
    is_owner = distributed.local_rank() == 0  # Of the arrays in a host's memory, which the others open.
    copies = _host_copies(config, lookup_latency, push_latency, is_owner)

    def opened():
        return {name: store.worker_rows(table, copies) for name, table in tables.items()}

    return _first_then_others(is_owner, opened, "host_rows_opened")


def _own_copies(config, lookup_latency, push_latency):
    """Returns f(store, table) -> `RowCache`."""
    worker, codec = f"rank{distributed.rank()}", find_codec(config.sync_compression)

    def copies(store, table):
        shares = merging.shares(table, config.sync_merge, distributed.size())
        return RowCache(store, table, worker, lookup_latency, push_latency, codec, shares)

    return copies


def _host_copies(config, lookup_latency, push_latency, is_syncer):
    """Returns f(store, table) -> `HostRows`. A collective."""
    hosts = int(distributed.all_sum(np.int64(is_syncer), "hosts"))
    worker, codec = f"rank{distributed.rank()}", find_codec(config.sync_compression)

    def copies(store, table):
        shares = merging.shares(table, config.sync_merge, hosts)
        memory = PrivateMemory() if store.host_memory is None else store.host_memory.under(table.name)
        others = dict(memory=memory, is_syncer=is_syncer, is_alone=distributed.size() == 1, has_others=hosts > 1)
        return HostRows(store, table, worker, lookup_latency, push_latency, codec, shares, **others)

    return copies


def _create_tables(store, configs):
    """Rank 0 makes the tables, then the others have them made or, where they share them, open them. A collective."""

    def create():
        for config in configs:
            store.create_table(config)

    _first_then_others(distributed.is_chief(), create, "tables_created")


def _first_then_others(is_first, call, barrier):
    """Returns call(), which each rank that `is_first` makes before any of the others does. A collective."""
    result = None
    for first in (True, False):
        if is_first == first:
            result = call()
        distributed.barrier(barrier)
    return result


def as_trained(config, trained):
    """Returns the TableConfig that a table was trained with.

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
