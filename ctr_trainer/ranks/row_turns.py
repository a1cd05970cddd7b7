"""The order in which the workers of a host look up and step the rows that they share."""

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from typing import Protocol

from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.host_sum import HostPeers


class RowTurns(Protocol):
    """When a worker may use the rows that it shares with other workers."""

    def to_look_up(self) -> contextlib.AbstractContextManager:
        """Returns the context manager to look a batch's rows up within."""

    def to_step(self) -> contextlib.AbstractContextManager:
        """Returns the context manager to step the rows of a step within."""


class AsTheyCome:
    """Workers use shared rows at any moment: two equal runs end with different models."""

    def to_look_up(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def to_step(self) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()


class ByRank:
    """In each step all workers look their rows up, then they step rows one after another in the order of their ranks.

    A worker steps its rows when all workers have looked theirs up, and looks up again when all have stepped theirs. So
    two equal runs end with equal models, however fast each worker is. Without a fixed order, sums of floating-point
    numbers differ in their last bits, and a lookup may or may not see the step of another worker.

    All workers call `to_look_up` and `to_step` equally often and in the same order. A collective to make.
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
        self._hear(self._awaited, "look their rows up once all have stepped the rows of the last step")
        yield
        self._peers.tell()
        self._awaited = self._others

    @contextlib.contextmanager
    def to_step(self) -> Iterator[None]:
        self._hear(self._awaited, "look up the rows of this step before any worker steps rows")
        self._hear(self._before, "step their rows before this one")
        yield
        self._peers.tell()
        self._awaited = tuple(self._after)

    def _hear(self, others: Iterable[int], what: str) -> None:
        with distributed.watchdog().waiting(f"other workers of this host, which {what}"):
            self._peers.hear(others)


def row_turns(by_rank: bool) -> RowTurns:
    """Returns `ByRank` or `AsTheyCome`. A collective.

    Args:
      by_rank: whether the workers of each host share rows, and are to use them in a fixed order.
    """
    return ByRank() if by_rank else AsTheyCome()
