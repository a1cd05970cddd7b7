"""Syncs the copies of embedding rows that a group of workers trains."""

import concurrent.futures
from collections.abc import Callable, Mapping
from typing import TypeVar

from ctr_trainer.embedding.worker.row_copies import Group, RowCopies
from ctr_trainer.estimator.run_length import EverySeconds
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import PHASES, Clock
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.processes import hardware
from ctr_trainer.system.processes.waiting import Background

_T = TypeVar("_T")


class RowSync:
    """Syncs the copies of all tables concurrently every `sync_steps` steps, in the background or strictly.

    The syncs of the ranks are spread over `sync_steps`, unless a sync is a collective. With a publication, a worker
    also syncs when half of the seconds between two publications have passed, because a publication reads the service.
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
        by_clock = config.publish.to and not (self.is_strict or config.deterministic)
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
