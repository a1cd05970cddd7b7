"""Encodes the blocks of a source in several threads, and yields their tables in the order of the source."""

import contextlib
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
      bad_rows: bad rows that the reader found before the block.
      is_first: whether this is the first block.
    """

    block: Block | None
    bad_rows: list[BadRow]
    is_first: bool = False


class _Done(NamedTuple):
    """An encoded block.

    Attributes:
      table: the good rows; None if there is no block, or if it has too many bad rows.
      statistics: Statistics of the table; without rows if statistics are not computed.
      bad_rows: the bad rows, in the order of the source.
    """

    table: pa.Table | None
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
    measured: bool = True,
) -> Generator[tuple[pa.Table, Statistics], None, None]:
    """Yields (encoded table, its Statistics) for each block of a source, in order.

    A separate thread reads the source. The tables, the statistics and the bad row that ends the conversion do not
    depend on the number of threads.

    Args:
      read: f(bad_rows) -> the blocks of the source.
      observed: receives the observations of all blocks. The caller checks it at the end.
      time: source column of a split by time; None for no such split.
      num_threads: number of blocks to encode concurrently; 0 for one per core of this process.
      measured: whether to compute statistics. If False, the yielded Statistics have no rows.
    """
    encoder, found = Encoder(spec, time), FoundBadRows(bad_rows.budget)

    def encode(work: _Work) -> _Done:
        own, found, table = Observations(spec), FoundBadRows(bad_rows.budget), None
        statistics = Statistics(spec)
        if work.block is not None:
            with contextlib.suppress(TooManyBadRows):
                chunk = work.block.parse(found)
                own.see_labels(chunk.table)
                if work.is_first:  # Counting values takes time, and one block has enough values.
                    own.see_typical(chunk.table)
                table = encoder.encode(chunk, found, own)
                if measured:
                    statistics.add(table)
        return _Done(table, statistics, own, work.bad_rows + found.rows)

    workers = [encode] * (num_threads or hardware.usable_cores())
    blocks = read_ahead(_read(read(found), found), 2, name="reading the input")
    with OrderedMap(workers, blocks, name="encoding the input") as results:
        for done in results:
            for row in done.bad_rows:
                bad_rows.add(*row)
            if done.table is not None:  # The end of the input may have bad rows, but has no block.
                observed.merge(done.observed)
                yield done.table, done.statistics


def _read(blocks: Iterable[Block], found: FoundBadRows) -> Iterator[_Work]:
    with contextlib.suppress(TooManyBadRows):
        for number, block in enumerate(blocks):
            yield _Work(block, found.taken(), is_first=number == 0)
    yield _Work(None, found.taken())
