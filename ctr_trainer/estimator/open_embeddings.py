"""Opens the embedding rows of a model for a worker: the rows of a store in this process, or copies."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from ctr_trainer.data import lookups
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.store import Store, StoreReader
from ctr_trainer.embedding.store.worker_rows import StepHistory, TableRows, WorkerRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import merging
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.embedding.worker.row_copies import Group, RowCopies
from ctr_trainer.estimator.built_step import BuiltStep
from ctr_trainer.estimator.embeddings import Embeddings, TableInputs
from ctr_trainer.estimator.row_gradients import HostGradients, RowGradients, RowSync
from ctr_trainer.features.tensors import FedFeatures
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import PHASES
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.messages.errors import UserError

_T = TypeVar("_T")


def open_embeddings(
    features: FedFeatures,
    config: RunConfig,
    store: Store,
    step: BuiltStep | None = None,
    *,
    ahead: int = 0,
    trained: Mapping[str, TableConfig] | None = None,
    uncached: bool = False,
) -> Embeddings:
    """Creates the tables of a model in the store, and opens their rows. A collective.

    The workers of a host train one copy of the rows if the store has `host_memory`; else each worker has its own.

    Args:
      config: with `deterministic`, workers that share rows train with `HostGradients`, and syncs are strict.
      step: the step of the model to train; None for an evaluation.
      trained: dict of table name -> the TableConfig to use; None to make them from `config`.
      uncached: whether each lookup reads the store, for an evaluation within training.
    """
    inputs = {
        table.name: TableInputs(table, features.segments[table.name])
        for table in features.spec.tables
        if table.name in features.segments
    }
    limits_of, embedding = features.spec.limits_of, config.embedding
    tables = [each.config(embedding, limits_of(name), config.seed) for name, each in inputs.items()]
    if trained is not None:
        tables = [_as_trained(table, trained) for table in tables]
    size, memory = distributed.size(), None if uncached else store.host_memory
    lookup = Latency(PHASES["lookup"].operation)
    push = Latency(PHASES["update"].operation, "the host" if memory else "")  # One worker pushes for its host.
    is_first = distributed.local_rank() == 0  # It makes the arrays in the host's memory, which the others open.
    group = Group(groups=size)
    if memory is not None:
        group = Group(groups=distributed.hosts(), is_syncer=is_first, is_alone=False)

    def rows_of(table: TableConfig) -> WorkerRows:
        if isinstance(store, LocalStore):
            return TableRows(store.tables[table.name])
        if uncached:
            return StoreReader(store, table)
        return RowCopies(
            store,
            table,
            f"rank{distributed.rank()}",
            group,
            memory=memory and memory.under(table.name),
            lookup_latency=lookup,
            push_latency=push,
        )

    def opened() -> dict[str, WorkerRows]:
        return {table.name: rows_of(table) for table in tables}

    _first_then_others(distributed.is_chief(), lambda: [*map(store.create_table, tables)], "tables_created")
    rows = opened() if group.is_alone else _first_then_others(is_first, opened, "host_rows_opened")
    copies = {name: each for name, each in rows.items() if isinstance(each, RowCopies)}
    group = group if copies else Group()
    # If there are copies, the log also reports an interval in which no lookup needed the service.
    lookup.shows_none = bool(copies)
    in_order = config.deterministic and step is not None
    syncs = RowSync(copies, group, in_order, config)
    host = HostGradients() if in_order and size > 1 and syncs.owner != "worker" else None
    scale = step.learning_rate_scale if step is not None else None
    factor = merging.gradient_factor(embedding.row_optimizer.name, size, scale or size, group.groups)
    found = lookups.pretrained_of(features.spec) if step is not None else {}
    frozen = {
        table: np.sort(np.concatenate([keys for each, keys, _ in parts if not each.trained]))
        for table, parts in found.items()
        if not all(each.trained for each, _, _ in parts)
    }
    for each in rows.values():
        if each.config.name in frozen and (each.config.evicts or embedding.row_optimizer.moves_all_rows):
            raise embedding.refused(
                "[[pretrained]] with trained = false keeps rows as they are, and {optimizer}, or max_rows or ttl_steps "
                "in [[limits]], changes or removes rows of {table} that no batch contains: leave out one of the two",
                table=each.config.name,
            )
    names = (name for each in inputs.values() for name in each.features)
    return Embeddings(
        store,
        inputs,
        rows,
        follow_steps(embedding, rows.values(), None if step is None else step.run_length.start),
        RowGradients(factor, embedding.l2, embedding.clip_norm, host, frozen),
        syncs,
        ahead=ahead,
        new_keys=NewKeys(names, distributed.is_chief(), distributed.is_chief() and step is not None),
        lookup_latency=lookup,
        push_latency=push,
    )


def follow_steps(config: EmbeddingConfig, rows: Iterable[WorkerRows], first_step: int | None) -> list[TableRows]:
    """Makes the rows of a dense optimizer catch up on the steps that they miss. Returns them; [] for a lazy optimizer.

    `first_step` is the global step at which training starts; None for an evaluation.
    """
    dense = []
    for each in rows if config.row_optimizer.moves_all_rows and first_step is not None else ():
        if not isinstance(each, TableRows):
            raise config.refused(
                "{optimizer} updates every row at every step, which is not possible for rows in a service: train with "
                "one worker and {service:name}=auto, or with the workers of one host and {service:name}=shared"
            )
        if each.config.has_limits:
            raise config.refused(
                "{optimizer} updates every row at every step, but [[limits]] of the feature spec limit which keys of "
                "{table} have rows: leave out one of the two",
                table=each.config.name,
            )
        each.follow_steps(StepHistory(first_step or 0, config.l2))
        dense.append(each)
    return dense


def _first_then_others(is_first: bool, call: Callable[[], _T], barrier: str) -> _T:
    """Returns `call()`. The ranks with `is_first` complete the call before the other ranks make it. A collective."""
    if not is_first:
        distributed.barrier(barrier)
    result = call()
    if is_first:
        distributed.barrier(barrier)
    distributed.barrier(barrier)
    return result


def _as_trained(config: TableConfig, trained: Mapping[str, TableConfig]) -> TableConfig:
    """Returns the `TableConfig` with which a table was trained."""
    found = trained.get(config.name)
    if found is None or found.dims != config.dims:
        what = ", ".join(f"{c.name} with dims {list(c.dims)}" for c in trained.values()) or "no table"
        raise UserError(
            f"the model uses table {config.name} with dims {list(config.dims)}, and the checkpoint has {what}: "
            "use the model and the embedding_dim with which it was trained"
        )
    return found
