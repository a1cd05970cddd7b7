"""The order in which the workers of a host look up and update the rows that they share."""

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Protocol

from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.host_sum import HostPeers


class RowTurns(Protocol):
    """Controls when a worker may use the rows that it shares with other workers."""

    def to_look_up(self) -> contextlib.AbstractContextManager:
        """Returns the context manager in which to look up the rows of a batch."""

    def to_step(self) -> contextlib.AbstractContextManager:
        """Returns the context manager in which to update the rows of a step."""


class AsTheyCome:
    """Workers use shared rows at any time, so that equal runs may result in different models."""

    def to_look_up(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def to_step(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()


class ByRank:
    """In each step, all workers look up their rows, then update them one after another in rank order.

    A worker updates its rows after all workers have looked up theirs, and looks up rows again after all have updated
    theirs. Therefore equal runs result in equal models, whatever the speed of each worker. Without a fixed order, sums
    of floating-point numbers differ in their last bits, and a lookup may or may not see the update of another worker.

    All workers must call `to_look_up` and `to_step` equally often and in the same order. The constructor is a
    collective.
    """

    def __init__(self) -> None:
        rank, size, first = distributed.local_rank(), distributed.local_size(), distributed.rank()
        name = distributed.broadcast_object(uuid.uuid4().hex, "row_turns")
        # Two hosts may be one machine under two names.
        name = f"{name}.{distributed.cross_rank()}"
        self._peers = HostPeers(rank, size, name, lambda: distributed.barrier("row_turns"), first - rank)
        self._before, self._after = range(rank), range(rank + 1, size)
        self._others: tuple[int, ...] = (*self._before, *self._after)
        self._awaited: tuple[int, ...] = ()

    @contextlib.contextmanager
    def to_look_up(self) -> Iterator[None]:
        self._hear(self._awaited, "must update the rows of the last step before any worker looks up rows")
        yield
        self._peers.tell()
        self._awaited = self._others

    @contextlib.contextmanager
    def to_step(self) -> Iterator[None]:
        self._hear(self._awaited, "must look up the rows of this step before any worker updates rows")
        self._hear(self._before, "must update their rows before this one")
        yield
        self._peers.tell()
        self._awaited = tuple(self._after)

    def _hear(self, others: Iterable[int], what: str) -> None:
        with distributed.watchdog().waiting(f"other workers of this host, which {what}"):
            self._peers.hear(others)


def row_turns(by_rank: bool) -> RowTurns:
    """Returns `ByRank` or `AsTheyCome`. A collective.

    Args:
      by_rank: whether the workers of each host share rows and use them in a fixed order.
    """
    return ByRank() if by_rank else AsTheyCome()
