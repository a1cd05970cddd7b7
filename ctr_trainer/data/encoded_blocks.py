"""Encodes the blocks of a source in several threads, and yields their tables in the source's order."""

import contextlib
import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa

from ctr_trainer.data.blocks import BadRow, BadRowSink, Block, FoundBadRows, TooManyBadRows
from ctr_trainer.data.encode import Encoder
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.read_ahead import OrderedMap, read_ahead
from ctr_trainer.data.statistics import Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.processes import hardware


class _Work(NamedTuple):
    """A block to encode.

    Attributes:
      block: the block; None at the end of the input.
      bad_rows: bad rows that the reader found before it.
      left_out: whether to leave out all its rows.
      first: whether it is the first block.
    """

    block: Block | None
    bad_rows: list[BadRow]
    left_out: bool
    first: bool


@dataclasses.dataclass
class EncodedBlock:
    """The result of encoding a block.

    Attributes:
      table: the encoded table of the good rows (see `encode.Encoder`); empty if they are left out.
      good_rows: number of good rows.
      statistics: Statistics of the table; empty if they are not measured.
      observed: Observations of the block.
      bad_rows: the bad rows, in the order of the source.
    """

    table: pa.Table | None
    good_rows: int
    statistics: Statistics
    observed: Observations
    bad_rows: list[BadRow]


def encoded(
    read: Callable[[BadRowSink], Iterable[Block]],
    spec: FeatureSpec,
    bad_rows: BadRowSink,
    observed: Observations,
    time: str | None = None,
    num_threads: int = 0,
    skip: int = 0,
    measured: bool = True,
) -> Generator[tuple[pa.Table, Statistics], None, None]:
    """Yields (encoded table, its Statistics) for each block of a source, in order.

    A separate thread reads the source. The tables, the statistics and the row that ends the conversion do not depend on
    the number of threads.

    Args:
      read: f(bad_rows) -> iterable of the source's blocks (see `blocks.Block`).
      spec: FeatureSpec.
      bad_rows: BadRows, which counts each row that is left out.
      observed: Observations, which receives the observations of all blocks; the caller checks it at the end.
      time: source column of a split by time; None for no such split.
      num_threads: number of blocks to encode concurrently; 0 for one per core of this process.
      skip: number of good rows to leave out at the beginning. A block that is left out yields an empty table, so that
        the caller sees progress.
      measured: whether to compute statistics; if not, the yielded Statistics have no rows.

    Yields:
      (table, Statistics)

    Raises:
      UserError: there are too many bad rows, or the source does not fit the spec.
    """
    num_threads = num_threads or hardware.usable_cores()
    encoder, found = Encoder(spec, time, threads=1), FoundBadRows(bad_rows.budget)
    with contextlib.ExitStack() as stack:
        blocks = stack.enter_context(read_ahead(_read(read(found), found, skip), 2, name="reading the input"))
        workers = [_Worker(encoder, spec, bad_rows.budget, measured) for _ in range(num_threads)]
        for block in stack.enter_context(OrderedMap(workers, blocks, name="encoding the input")):
            for row in block.bad_rows:
                bad_rows.add(*row)
            if block.table is None:  # The end of the input, which may have bad rows but no block.
                continue
            observed.merge(block.observed)
            out = min(skip, block.good_rows)
            skip -= out
            if out:
                block.table = block.table.slice(min(out, len(block.table)))
                block.statistics = _statistics(block.table, spec, measured)
            yield block.table, block.statistics


def _read(blocks: Iterable[Block], found: FoundBadRows, skip: int) -> Iterator[_Work]:
    read = 0
    with contextlib.suppress(TooManyBadRows):
        for block in blocks:
            first, read = not read, read + block.most_rows
            yield _Work(block, found.taken(), left_out=read <= skip, first=first)
    yield _Work(None, found.taken(), left_out=False, first=False)


def _statistics(table: pa.Table, spec: FeatureSpec, measured: bool) -> Statistics:
    statistics = Statistics(spec)
    if measured:
        statistics.add(table)
    return statistics


class _Worker:
    """Encodes a block; a function for `OrderedMap`."""

    def __init__(self, encoder: Encoder, spec: FeatureSpec, budget: int, measured: bool) -> None:
        self._encoder, self._spec, self._budget, self._measured = encoder, spec, budget, measured

    def __call__(self, item: _Work) -> EncodedBlock:
        observed, found = Observations(self._spec), FoundBadRows(self._budget)
        table, statistics, good_rows = None, Statistics(self._spec), 0
        if item.block is not None:
            with contextlib.suppress(TooManyBadRows):
                chunk = item.block.parse(found)
                observed.see_labels(chunk.table)  # This includes rows that are left out.
                if item.first:  # Counting values takes time, and one block has enough values.
                    observed.see_typical(chunk.table)
                good_rows = len(chunk.table)
                if item.left_out:
                    chunk = dataclasses.replace(chunk, table=chunk.table.slice(0, 0))
                table = self._encoder.encode(chunk, found, observed)
                good_rows = good_rows if item.left_out else len(table)
                statistics = _statistics(table, self._spec, self._measured)
        return EncodedBlock(table, good_rows, statistics, observed, item.bad_rows + found.rows)

    def close(self) -> None:
        pass
