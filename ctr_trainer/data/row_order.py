"""Computes which rows a worker reads, and in which order. The results are the same on every worker.

The order of an epoch is a function of (seed, epoch) and does not depend on the workers. The row groups of all files are
permuted. Consecutive row groups form a buffer of about `shuffle_buffer` rows, and the rows of each buffer are permuted.
A row's number is its position in this order. A worker's share is a list of ranges [start, stop) of row numbers.
"""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ctr_trainer.system.messages.errors import UserError

Share = list[list[int]]  # Ranges [start, stop) of an epoch's order.


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Rows [start, stop) of an epoch's order; `groups` are the row groups of these rows, in reading order."""

    index: int
    start: int
    stop: int
    groups: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Place:
    """Rows [start, stop) of a buffer in the order of an epoch; start and stop count from the buffer's beginning."""

    epoch: int
    buffer: Buffer
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class EpochOrder:
    """The order of the rows in each epoch; without `shuffle` that of the files.

    `group_rows` are the rows of each row group, over all files in order. A buffer of about `shuffle_buffer` rows
    consists of whole row groups. `files` describes the files, see `Source.files`; "" for none.
    """

    group_rows: tuple[int, ...]
    shuffle: bool
    seed: int
    shuffle_buffer: int
    files: str = ""

    @property
    def rows(self) -> int:
        return sum(self.group_rows)

    @functools.lru_cache(maxsize=2)  # noqa: B019 (an EpochOrder lives as long as its reader)
    def buffers(self, epoch: int) -> tuple[Buffer, ...]:
        """Returns the epoch's Buffers, in order."""
        groups = list(range(len(self.group_rows)))
        if self.shuffle:
            groups = [int(g) for g in self._rng(epoch, 0).permutation(len(groups))]
        buffers: list[Buffer] = []
        waiting: list[int] = []
        start = stop = 0
        for number, group in enumerate(groups, 1):
            waiting.append(group)
            stop += self.group_rows[group]
            if not self.shuffle or stop - start >= self.shuffle_buffer or number == len(groups):
                buffers.append(Buffer(len(buffers), start, stop, tuple(waiting)))
                waiting, start = [], stop
        return tuple(buffers)

    def permutation(self, epoch: int, buffer: Buffer) -> np.ndarray | None:
        """Returns int64[n], the row of the buffer's row groups for each position; None without shuffling."""
        if not self.shuffle:
            return None
        return self._rng(epoch, buffer.index + 1).permutation(buffer.stop - buffer.start)

    def places(self, epoch: int, share: Share) -> Iterator[Place]:
        """Yields the Places of a worker's share, in order. An empty share has one empty Place."""
        if not share:  # All batches of this worker are padding; the empty Place determines their shapes.
            yield Place(epoch, Buffer(0, 0, 0, groups=(0,)), 0, 0)
        buffers = self.buffers(epoch)
        starts = [b.start for b in buffers]
        for start, stop in share:
            at = int(np.searchsorted(starts, start, side="right")) - 1
            while start < stop:
                buffer = buffers[at]
                end = min(stop, buffer.stop)
                yield Place(epoch, buffer, start - buffer.start, end - buffer.start)
                start, at = end, at + 1

    def _rng(self, epoch: int, stream: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, epoch, stream))


def length(share: Share) -> int:
    """Returns the number of rows of a share."""
    return sum(stop - start for start, stop in share)


def even_shares(ranges: Share, workers: int) -> list[Share]:
    """Divides the rows of `ranges`, in order, into one share per worker. Share sizes differ by at most one row."""
    rows = length(ranges)
    cuts = [worker * rows // workers for worker in range(workers + 1)]
    return [_slice(ranges, first, last) for first, last in zip(cuts, cuts[1:], strict=False)]


def advance(share: Share, rows: int) -> Share:
    """Returns the share without its first `rows` rows."""
    return _slice(share, rows, length(share))


def num_batches(shares: Sequence[Share], batch_size: int) -> int:
    """Returns the number of batches that every worker makes: as many as the longest share needs."""
    return max((-(-length(share) // batch_size) for share in shares), default=0)


def _slice(ranges: Share, first: int, last: int) -> Share:
    result = []
    for start, stop in ranges:
        low, high = max(first, 0), min(last, stop - start)
        if low < high:
            result.append([start + low, start + high])
        first, last = first - (stop - start), last - (stop - start)
    return result


@dataclasses.dataclass(frozen=True)
class Position:
    """An epoch and, for each worker, the ranges of the epoch's order that the worker has not read yet.

    The end of an epoch is the beginning of the next epoch, with complete shares.
    """

    epoch: int
    shares: list[Share]

    @staticmethod
    def beginning(epoch: int, rows: int, workers: int) -> "Position":
        """Returns the position before the epoch's first row."""
        return Position(epoch, even_shares([[0, rows]], workers))

    @staticmethod
    def restore(values: Any, order: EpochOrder, workers: int) -> "Position":
        """Makes a position from the result of `to_dict`. If the number of workers differs, divides the rows again.

        Raises UserError if the position belongs to other data or to another order of the rows.
        """
        if not _is_position(values):
            raise UserError(f"reader position {values!r}: expected the keys epoch, shares and order")
        there = values["order"]
        for name, value in _order(order).items():
            if there.get(name) != value:
                if name in ("rows", "files"):
                    why = (
                        "it is other data than the checkpoint's. To train this model on it, as on the next day, set "
                        "next_data; or set warm_start to this model, and another model_dir. To resume, give the "
                        "checkpoint's data"
                    )
                else:
                    why = (
                        "the order of the rows differs: some would be read twice, others never. Resume with the "
                        "settings of the checkpoint"
                    )
                raise UserError(
                    f"reader position: it was saved with {name} = {there.get(name)}, and now {name} = {value}: {why}"
                )
        shares = values["shares"]
        if len(shares) != workers:
            shares = even_shares([r for share in shares for r in share], workers)
        return Position(values["epoch"], shares)

    def to_dict(self, order: EpochOrder) -> dict[str, Any]:
        """Returns the position as a dict for JSON."""
        return dict(epoch=self.epoch, shares=self.shares, order=_order(order))

    def after(self, steps: int, batch_size: int, rows: int) -> "Position":
        """Returns the position after `steps` further batches."""
        here = self
        while steps and steps >= (left := num_batches(here.shares, batch_size)):
            steps -= left
            here = Position.beginning(here.epoch + 1, rows, len(here.shares))
        return Position(here.epoch, [advance(share, steps * batch_size) for share in here.shares])


def progress(values: Any) -> tuple[float, int] | None:
    """Returns (epochs that all workers together have read, number of workers); None if `values` is no position."""
    if not _is_position(values):
        return None
    left = sum(map(length, values["shares"]))
    return values["epoch"] + 1 - left / values["order"]["rows"], len(values["shares"])


def is_of(values: Any, files: str) -> bool:
    """Returns whether a saved position is one of the data with this description, see `Source.files`."""
    return _is_position(values) and values["order"].get("files") == files


def _is_position(values: Any) -> bool:
    return isinstance(values, dict) and {"epoch", "shares", "order"} <= values.keys()


def _order(order: EpochOrder) -> dict[str, Any]:
    """Returns the settings that identify an order of the rows."""
    return {name: getattr(order, name) for name in ("rows", "shuffle", "seed", "shuffle_buffer", "files")}
