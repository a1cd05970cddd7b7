"""Opens the rows of each table for a worker, and looks them up between steps or while a step runs."""

import collections
import concurrent.futures
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.store.row_codec import find_codec
from ctr_trainer.embedding.store.store import MakeCopies, Store, StoreReader
from ctr_trainer.embedding.store.worker_rows import StepHistory, WorkerRows
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import merging
from ctr_trainer.embedding.worker.host_rows import HostRows
from ctr_trainer.embedding.worker.row_cache import RowCache
from ctr_trainer.estimator.open_store import copies_of_hosts
from ctr_trainer.estimator.table_inputs import LookedUp
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import hardware

_T = TypeVar("_T")


class EachTable:
    """Calls a function for the copies of each table, concurrently if there are several tables.

    The threads run on `cores`; None for the cores of this process.
    """

    def __init__(self, copies: Mapping[str, WorkerRows], cores: set[int] | None) -> None:
        self._copies = copies
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        if len(copies) > 1:  # Each table may have one sync request and one request that pulls ahead at the same time.
            self._threads = concurrent.futures.ThreadPoolExecutor(
                2 * len(copies), initializer=hardware.run_on, initargs=(cores,)
            )

    def call(self, function: Callable[[str, WorkerRows], _T]) -> dict[str, _T]:
        """Returns a dict of table name -> `function(name, rows)`. Waits for all calls before it raises an error."""
        if self._threads is None:
            return {name: function(name, rows) for name, rows in self._copies.items()}
        futures = {name: self._threads.submit(function, name, rows) for name, rows in self._copies.items()}
        concurrent.futures.wait(futures.values())
        return {name: future.result() for name, future in futures.items()}

    def close(self) -> None:
        """Stops the threads."""
        if self._threads:
            self._threads.shutdown()


def open_rows(
    store: Store,
    config: EmbeddingConfig,
    tables: Mapping[str, TableConfig],
    *,
    lookup_latency: Latency,
    push_latency: Latency,
    hosts: int = 1,
    uncached: bool = False,
) -> dict[str, WorkerRows]:
    """Creates the tables in the store, and returns a dict of table name -> `WorkerRows`. A collective.

    Args:
      config: decides which workers share one copy of the rows.
      hosts: number of hosts of the job.
      lookup_latency, push_latency: record the requests that copies send to the service.
      uncached: whether each lookup reads the store.
    """

    def create() -> None:
        for table in tables.values():
            store.create_table(table)

    _first_then_others(distributed.is_chief(), create, "tables_created")
    if uncached:
        return {name: store.worker_rows(table, StoreReader) for name, table in tables.items()}
    if store.host_memory is None and (distributed.size() > 1 or not copies_of_hosts(config)):
        copies = _own_copies(config, lookup_latency, push_latency)
        return {name: store.worker_rows(table, copies) for name, table in tables.items()}
    is_owner = distributed.local_rank() == 0  # It creates the arrays in the host's memory. The other ranks open them.
    copies = _host_copies(config, lookup_latency, push_latency, is_owner, hosts)

    def opened() -> dict[str, WorkerRows]:
        return {name: store.worker_rows(table, copies) for name, table in tables.items()}

    return _first_then_others(is_owner, opened, "host_rows_opened")


def follow_steps(config: EmbeddingConfig, rows: Iterable[WorkerRows], first_step: int | None) -> list[WorkerRows]:
    """Makes the rows of a dense optimizer catch up on the steps that they miss. Returns them; [] for a lazy optimizer.

    Args:
      first_step: the global step at which training starts; None for an evaluation.

    Raises:
      SettingError: the optimizer is dense, but the rows are copies, or limits determine which keys have rows.
    """
    dense = list(rows) if config.row_optimizer.moves_all_rows and first_step is not None else []
    for each in dense:
        if each.are_copies:
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
    return dense


def _own_copies(config: EmbeddingConfig, lookup_latency: Latency, push_latency: Latency) -> MakeCopies:
    """Returns f(store, table) -> `RowCache`."""
    worker, codec = f"rank{distributed.rank()}", find_codec(config.sync_compression)

    def copies(store: Store, table: TableConfig) -> RowCache:
        shares = merging.shares(table, config.sync_merge, distributed.size())
        return RowCache(store, table, worker, lookup_latency, push_latency, codec, shares)

    return copies


def _host_copies(
    config: EmbeddingConfig, lookup_latency: Latency, push_latency: Latency, is_syncer: bool, hosts: int
) -> MakeCopies:
    """Returns f(store, table) -> `HostRows`."""
    worker, codec = f"rank{distributed.rank()}", find_codec(config.sync_compression)

    def copies(store: Store, table: TableConfig) -> HostRows:
        shares = merging.shares(table, config.sync_merge, hosts)
        memory = TableMemory() if store.host_memory is None else store.host_memory.under(table.name)
        return HostRows(
            store,
            table,
            worker,
            lookup_latency,
            push_latency,
            codec,
            shares,
            memory=memory,
            is_syncer=is_syncer,
            is_alone=distributed.size() == 1,
            has_others=hosts > 1,
        )

    return copies


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


class RowsInTurn:
    """Looks up the rows of a batch before its step and trains them after it, in the training thread.

    Args:
      look_up: f(lookups, create) -> `LookedUp`, see `Embeddings.look_up`.
      batches: iterable of (`Batch`, lookups).
      training: whether a key without a row gets a new row.
    """

    def __init__(self, look_up: Callable[..., LookedUp], batches: Iterable[tuple[Batch, Any]], training: bool) -> None:
        self._look_up, self._batches, self._training = look_up, iter(batches), training

    def read(self) -> tuple[Batch, Any]:
        """Returns the next `Batch` and the argument of `look_up`; raises StopIteration at the end."""
        return next(self._batches)

    def look_up(self, lookups: Any) -> LookedUp:
        """Returns the `LookedUp` of the batch."""
        return self._look_up(lookups, create=self._training)

    def train(self, call: Callable[..., None], *arguments: Any) -> None:
        """Calls a method of `Embeddings` that takes gradients. Only the next lookup may run before this call ends."""
        call(*arguments)

    def finish_pending(self) -> None:
        """Finishes training the rows of the steps so far. Called before a sync or a flush."""

    def close(self) -> None:
        """Stops the background work. Also called after an error."""


class RowPipeline(RowsInTurn):
    """While a step runs, trains the rows of the previous step and then looks up the rows of the next step.

    One thread does both in a fixed order, so a run is as repeatable as without a pipeline:

        training thread:       step t          step t+1          step t+2
        pipeline thread:       train t-1, look up t+1   train t, look up t+2   ...

    Staleness: a step reads rows that lack only the update of the previous step. Before a sync, a checkpoint or an
    evaluation, all rows are trained, and the batch that was looked up ahead is looked up again. The rows are then
    complete, and a resumed run continues like a run that was not interrupted.

    Caveat: a new key in a batch that is looked up ahead gets its row at once, so a checkpoint may contain rows that no
    step has trained yet. Tables with limits are not supported, because a row may be removed before a step trains it.

    Source: the semi-synchronous training pipelines of TorchRec (`TrainPipelineSemiSync`).
    """

    def __init__(self, look_up: Callable[..., LookedUp], batches: Iterable[tuple[Batch, Any]]) -> None:
        super().__init__(look_up, batches, training=True)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "embedding rows")
        self._trainings: collections.deque[concurrent.futures.Future] = collections.deque()
        # (Batch, lookups, Future of LookedUp or None); None before the first batch and after the last.
        self._next: tuple[Batch, Any, concurrent.futures.Future | None] | None = None
        self._has_begun = False

    def read(self) -> tuple[Batch, Any]:
        if not self._has_begun:
            self._has_begun = True
            self._prepare()
        if self._next is None:
            raise StopIteration
        return self._next[0], self._next

    def look_up(self, prepared: Any) -> LookedUp:
        """Returns the `LookedUp` of the batch, and starts the lookup of the next batch."""
        _, lookups, future = prepared
        looked_up = future.result() if future else self._start(lookups).result()
        while self._trainings and self._trainings[0].done():
            self._trainings.popleft().result()  # Raises the error of the training, if any.
        self._prepare()
        return looked_up

    def train(self, call: Callable[..., None], *arguments: Any) -> None:
        self._trainings.append(self._thread.submit(call, *arguments))

    def finish_pending(self) -> None:
        while self._trainings:
            self._trainings.popleft().result()
        if self._next is not None:
            batch, lookups, future = self._next
            if future is not None:
                future.result()
            self._next = batch, lookups, None

    def close(self) -> None:
        """Waits for the work in progress, and ignores its errors."""
        self._thread.shutdown(cancel_futures=True)

    def _prepare(self) -> None:
        try:
            batch, lookups = next(self._batches)
        except StopIteration:
            self._next = None
        else:
            self._next = batch, lookups, self._start(lookups)

    def _start(self, lookups: Any) -> concurrent.futures.Future:
        return self._thread.submit(self._look_up, lookups, create=True)
