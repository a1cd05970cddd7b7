"""The rows of a worker: the gradients of their optimizer steps, and the syncs of the copies that it trains."""

import concurrent.futures
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ctr_trainer.embedding.index.key_kernels import distinct, positions_of
from ctr_trainer.embedding.store.worker_rows import WorkerRows, times, weighed
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.worker.row_copies import Group, RowCopies
from ctr_trainer.estimator.run_length import EverySeconds
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.host_sum import host_peers
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import PHASES, Clock
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.processes import hardware
from ctr_trainer.system.processes.waiting import Background

_T = TypeVar("_T")


@dataclasses.dataclass
class TableGradients:
    """The gradients of one table's rows in an optimizer step.

    Attributes:
      keys: int64[U], distinct.
      slots: int64[U], the slots of the keys' rows; -1 for a key without a row.
      sums: one float32[U, dim] per segment, the gradients summed over equal keys. The first segment has gradients of
        the first keys only if the embeddings of the others are not trained.
    """

    rows: WorkerRows
    keys: np.ndarray
    slots: np.ndarray
    sums: list[np.ndarray]


class HostGradients:
    """The first worker of a host trains the rows of all its workers, with the sums of their gradients.

    K workers thus make the row steps of one worker with a K times larger batch, for every optimizer. The others send
    their gradients, and continue when the rows are trained. The sums are computed in rank order. Therefore identical
    runs end with identical models, regardless of the workers' speeds. The constructor is a collective.

    `trains`: whether this worker trains rows.
    """

    def __init__(self) -> None:
        self._peers = host_peers("row_gradients")
        self.trains = self._peers.rank == 0

    def add_up(self, parts: list[TableGradients]) -> list[TableGradients]:
        """Returns the gradients with which this worker trains, from its own, one element per table."""
        if self.trains:
            with distributed.watchdog().waiting("the row gradients of the other workers of this host"):
                others = [[self._received(other, part) for part in parts] for other in range(1, self._peers.size)]
            return [_merged(of_table) for of_table in zip(parts, *others, strict=True)]
        with distributed.watchdog().waiting("the first worker of this host, which trains the rows of all its workers"):
            for part in parts:
                for array in (part.keys, part.slots, *part.sums):
                    self._peers.send(0, array)
            self._peers.hear([0])
        return [TableGradients(p.rows, p.keys[:0], p.slots[:0], [g[:0] for g in p.sums]) for p in parts]

    def end_step(self) -> None:
        """Ends a step, after its rows were trained."""
        if self.trains:
            self._peers.tell()

    def _received(self, other: int, own: TableGradients) -> TableGradients:
        """Returns the gradients of another worker, for the table of `own`."""
        keys, slots = (self._peers.receive(other, np.int64) for _ in range(2))
        sums = [self._peers.receive(other, np.float32, gradient.shape[1]) for gradient in own.sums]
        return TableGradients(own.rows, keys, slots, sums)


class RowGradients:
    """Sums the gradients g_k of a step's micro-batches k, then regularizes and clips the sum:

        g = sum_k weighed(g_k) + l2 * share * w;  g *= min(1, clip_norm / |g|)

    for the rows w of all distinct keys in the step. `worker_rows.weighed` defines the weights. |g| is the norm over all
    rows of all tables in this worker's step; each worker clips its own step. `share` is `WorkerRows.l2_shares`. Without
    it, a row that K workers use would decay K times as much as with one worker. With `HostGradients`, k runs over the
    micro-batches of all workers of the host.

    Args:
      merge_factor: see `merging.gradient_factor`.
      l2: adds l2 / 2 * sum w^2 over the distinct rows of the step to the loss, so a row decays when it is used. Rows of
        a dense optimizer also decay in the other steps, see `table.missed_steps`.
      clip_norm: maximum norm; 0 disables clipping.
      frozen: the sorted keys of each table whose embeddings are not trained.
      host: sums over the workers of the host; None if each worker trains the rows of its own batches, at any time.
    """

    def __init__(
        self,
        merge_factor: float,
        l2: float = 0.0,
        clip_norm: float = 0.0,
        host: HostGradients | None = None,
        frozen: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.host, self._merge_factor, self._l2, self._clip_norm = host, merge_factor, l2, clip_norm
        self._frozen = frozen or {}
        self._batches: list[tuple[list[TableGradients], float]] = []

    def add(self, batch: list[TableGradients], weight: float = 1.0) -> None:
        """Adds a micro-batch, always with the same tables in the same order."""
        self._batches.append((batch, weight))

    def take(self, share: float) -> list[TableGradients]:
        """Returns the gradients of a step, one element per table, and removes its micro-batches; see `weighed`."""
        weighed_batches, self._batches = self._batches, []
        for batch, weight in weighed_batches:
            for part in batch:
                part.sums = [weighed(g, weight, share, self._merge_factor) for g in part.sums]
        batches = [batch for batch, _ in weighed_batches]
        parts = batches[0] if len(batches) == 1 else [_merged(parts) for parts in zip(*batches, strict=True)]
        parts = self.host.add_up(parts) if self.host else parts
        for part in parts if self._l2 else ():
            start, shares, own = 0, part.rows.l2_shares(part.slots), part.sums
            l2, part.sums = np.float32(self._l2) if shares is None else np.float32(self._l2) * shares[:, None], []
            weights = part.rows.take(part.rows.current(part.keys, part.slots))
            for gradient in own:
                part.sums.append(gradient + l2 * weights[:, start : start + gradient.shape[1]])
                start += gradient.shape[1]
        for part in parts:
            keys = self._frozen.get(part.rows.config.name)
            if keys is not None:
                is_frozen = keys[np.minimum(np.searchsorted(keys, part.keys), len(keys) - 1)] == part.keys
                order = np.argsort(is_frozen, kind="stable")
                part.keys, part.slots, part.sums = part.keys[order], part.slots[order], [g[order] for g in part.sums]
                part.sums[0] = part.sums[0][: np.count_nonzero(~is_frozen)]
        if self._clip_norm:
            norm = math.sqrt(sum(float(np.vdot(g, g)) for part in parts for g in part.sums))
            if norm > self._clip_norm:
                for part in parts:
                    part.sums = [times(g, self._clip_norm / norm) for g in part.sums]
        return parts


def _merged(parts: Sequence[TableGradients]) -> TableGradients:
    """Returns the summed gradients of a table's micro-batches, or of several workers."""
    rows = parts[0].rows
    keys = distinct([part.keys for part in parts])
    slots = np.full(len(keys), -1, np.int64)
    sums = [np.zeros((len(keys), gradient.shape[1]), np.float32) for gradient in parts[0].sums]
    for part in parts:
        at = positions_of(keys, part.keys)
        slots[at] = part.slots
        for total, gradient in zip(sums, part.sums, strict=True):
            row_kernels.add(total, at, gradient)
    return TableGradients(rows, keys, slots, sums)


class RowSync:
    """Syncs the copies of all tables concurrently every `sync_steps` steps, in the background or strictly.

    The syncs of the ranks are spread over `sync_steps`, unless a sync is a collective. A publication reads the service,
    so rank 0 also syncs before each of its records, and the other groups twice per `publish_secs`.
    A step waits only if the next sync is due and the previous one has not ended.

    A strict sync is a collective: all groups push at the same step, in rank order, and wait for each other, so that the
    service adds the changes in a fixed order. Then each group reads the rows with the pushes of all. With one group,
    nothing depends on the order.

    Args:
      copies: dict of table name -> `RowCopies`; empty if this worker trains the tables of the store.
      in_order: whether syncs of several groups are strict, as in a training with `deterministic`.

    Attributes:
      steps: the number of steps between two syncs.
      owner: the owner of each copy, `host` or `worker`; None if there are no copies.
      latency: OpsParameterSync: time of each sync of all tables.
      seconds: duration of the last sync.
      wait_ms: milliseconds for which the last sync blocked the training thread; None before the first sync.
    """

    def __init__(self, copies: Mapping[str, RowCopies], group: Group, in_order: bool, config: RunConfig) -> None:
        self.copies, self._group = copies, group
        self.is_strict = in_order and group.groups > 1
        self.owner = None if not copies else "worker" if group.is_alone else "host"
        # The sync of a host may use the cores of all its workers. On one worker's cores alone, it would delay that
        # worker, and the other workers would wait for it.
        cores = None if group.is_alone else distributed.host_cores()
        self._background = Background("the sync of the embedding rows", cores=cores)
        self._threads: concurrent.futures.ThreadPoolExecutor | None = None
        if len(copies) > 1:  # Each table may have one sync request and one request that pulls ahead at the same time.
            self._threads = concurrent.futures.ThreadPoolExecutor(
                2 * len(copies), initializer=hardware.run_on, initargs=(cores,)
            )
        self.latency = Latency(PHASES["sync"].operation, "" if group.is_alone else "the host")
        self.seconds = 0.0
        self.wait_ms: float | None = None
        self.steps, rank, size = config.embedding.sync_steps, distributed.rank(), distributed.size()
        self._offset = 0 if self.is_strict else rank * self.steps // size
        by_clock = config.publish.to and group.groups > 1 and not config.deterministic
        self._seconds = EverySeconds(config.publish.secs / 2) if by_clock else None

    def sync_if_due(self, step: int, clock: Clock) -> None:
        """Syncs if a sync is due after `step`. Raises the error of a failed sync."""
        if not self._background.is_busy:
            self._background.wait()
        if (step + self._offset) % self.steps == 0 or (self._seconds and self._seconds.is_over()):
            with clock.within("sync"):
                self.sync()
                self.wait_ms = 1000 * clock.lasted()
            if self._seconds:
                self._seconds.begin()

    @property
    def is_busy(self) -> bool:
        """Whether a sync runs in the background. Any thread may ask."""
        return self._background.is_busy

    def on_all(self, call: Callable[[str, RowCopies], _T]) -> dict[str, _T]:
        """Returns a dict of table name -> `call(name, copies)`. Waits for all calls before it raises an error."""
        if self._threads is None:
            return {name: call(name, copies) for name, copies in self.copies.items()}
        futures = {name: self._threads.submit(call, name, copies) for name, copies in self.copies.items()}
        concurrent.futures.wait(futures.values())
        return {name: future.result() for name, future in futures.items()}

    def sync(self) -> None:
        """Syncs: as a collective if strict, otherwise in the background, after the previous sync has ended."""
        if self.is_strict:
            self._timed(lambda: self._sync_strictly(lambda _, copies: copies.refresh()))
        elif self.copies and self._group.is_syncer:
            self._background.wait()
            for copies in self.copies.values():
                copies.begin_window()
            self._background.start(lambda: self._timed(lambda: self.on_all(lambda _, copies: copies.sync_window())))

    def flush(self) -> None:
        """Syncs, and returns when the store has exactly all changes of the group. A collective unless alone."""
        if self.is_strict:
            self._sync_strictly(lambda _, copies: copies.forget())  # A training that resumes has no copies either.
            return
        self._background.wait()
        self._meet("host_rows_stepped")
        self.on_all(lambda _, copies: copies.flush())
        self._meet("host_rows_flushed")

    def close(self) -> None:
        """Waits for a running sync and ignores its errors, because the training may have ended early."""
        self._background.close()
        if self._threads:
            self._threads.shutdown()

    def _timed(self, sync: Callable[[], object]) -> None:
        before = self.latency.total_seconds
        with self.latency.measure():
            sync()
        self.seconds = self.latency.total_seconds - before

    def _meet(self, what: str) -> None:
        """Waits for all workers of the job if the workers of a host share copies."""
        if not self._group.is_alone:
            distributed.barrier(what)

    def _sync_strictly(self, then: Callable[[str, RowCopies], None]) -> None:
        """Pushes in rank order, and then calls `then` for the copies of each table."""
        for pusher in range(distributed.size()):
            if pusher == distributed.rank() and self._group.is_syncer:
                self.on_all(lambda _, copies: copies.flush())
            distributed.barrier("strict_sync")
        if self._group.is_syncer:
            self.on_all(then)
        self._meet("host_rows_refreshed")
