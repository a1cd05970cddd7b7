"""Opens the rows of each table for a worker: the rows of a store in this process, or copies."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ctr_trainer.embedding.store.row_codec import find_codec
from ctr_trainer.embedding.store.store import Store, StoreReader
from ctr_trainer.embedding.store.worker_rows import StepHistory, TableRows, WorkerRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.row_copies import Group, RowCopies
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.messages.errors import UserError

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """How a training updates its rows.

    Attributes:
      first_step: the global step at which training starts.
      scale: factor that scales the learning rates of the job; None for the number of workers.
      in_order: whether identical runs train the rows identically: workers that share rows train with `HostGradients`,
        and syncs of several copies are strict.
    """

    first_step: int = 0
    scale: float | None = None
    in_order: bool = False


@dataclasses.dataclass(frozen=True)
class OpenRows:
    """The rows that a worker uses.

    Attributes:
      rows: dict of table name -> `WorkerRows`.
      group: the workers that train one copy of the rows; `Group()` if the rows are no copies.
    """

    rows: dict[str, WorkerRows]
    group: Group

    @property
    def copies(self) -> dict[str, RowCopies]:
        return {name: rows for name, rows in self.rows.items() if isinstance(rows, RowCopies)}


def open_rows(
    store: Store,
    config: EmbeddingConfig,
    tables: Iterable[TableConfig],
    *,
    lookup_latency: Latency,
    push_latency: Latency,
    uncached: bool = False,
) -> OpenRows:
    """Creates the tables in the store, and opens their rows. A collective.

    The workers of a host train one copy of the rows if the store has `host_memory`; else each worker has its own.

    Args:
      lookup_latency, push_latency: record the requests that copies send to the service.
      uncached: whether each lookup reads the store, for an evaluation within training.
    """

    def create() -> None:
        for table in tables:
            store.create_table(table)

    def opened() -> dict[str, WorkerRows]:
        return {table.name: store.worker_rows(table, copies) for table in tables}

    _first_then_others(distributed.is_chief(), create, "tables_created")
    if uncached:
        copies: Callable[[Store, TableConfig], WorkerRows] = StoreReader
        return OpenRows(opened(), Group())
    is_first = distributed.local_rank() == 0  # It makes the arrays in the host's memory, which the others open.
    group = Group(groups=distributed.size())
    if store.host_memory is not None:
        group = Group(groups=distributed.hosts(), is_syncer=is_first, is_alone=False)
    copies = functools.partial(_copies, config, group, lookup_latency, push_latency)
    rows = opened() if group.is_alone else _first_then_others(is_first, opened, "host_rows_opened")
    found = OpenRows(rows, group)
    return found if found.copies else OpenRows(rows, Group())


def _copies(
    config: EmbeddingConfig,
    group: Group,
    lookup_latency: Latency,
    push_latency: Latency,
    store: Store,
    table: TableConfig,
) -> RowCopies:
    return RowCopies(
        store,
        table,
        f"rank{distributed.rank()}",
        group,
        memory=store.host_memory and store.host_memory.under(table.name),
        lookup_latency=lookup_latency,
        push_latency=push_latency,
        codec=find_codec(config.sync_compression),
    )


def follow_steps(config: EmbeddingConfig, rows: Iterable[WorkerRows], first_step: int | None) -> list[TableRows]:
    """Makes the rows of a dense optimizer catch up on the steps that they miss. Returns them; [] for a lazy optimizer.

    Args:
      first_step: the global step at which training starts; None for an evaluation.

    Raises:
      SettingError: the optimizer is dense, but the rows are copies, or limits determine which keys have rows.
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


def as_trained(config: TableConfig, trained: Mapping[str, TableConfig]) -> TableConfig:
    """Returns the `TableConfig` with which a table was trained.

    Raises:
      UserError: the model uses a table or dims with which it was not trained.
    """
    found = trained.get(config.name)
    if found is None or found.dims != config.dims:
        what = ", ".join(f"{c.name} with dims {list(c.dims)}" for c in trained.values()) or "no table"
        raise UserError(
            f"the model uses table {config.name} with dims {list(config.dims)}, and the checkpoint has {what}: "
            "use the model and the embedding_dim with which it was trained"
        )
    return found
