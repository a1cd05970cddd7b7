"""Encodes the blocks of a source in several threads, and yields their tables in the order of the source."""

from collections.abc import Callable, Generator, Iterable

import pyarrow as pa

from ctr_trainer.data.blocks import BadRow, Block
from ctr_trainer.data.encode import Encoder
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.read_ahead import OrderedMap, read_ahead
from ctr_trainer.data.statistics import Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.processes import hardware


def encoded(
    blocks: Iterable[Block],
    spec: FeatureSpec,
    leave_out: Callable[[list[BadRow]], None],
    observed: Observations,
    time: str | None = None,
    num_threads: int = 0,
    measured: bool = True,
) -> Generator[tuple[pa.Table, Statistics], None, None]:
    """Yields (encoded table, its Statistics, empty unless `measured`) for each block of a source, in order.

    A thread reads the source. The tables, statistics and order of bad rows do not depend on the number of threads.
    `leave_out` gets the bad rows of a block before its table is yielded. `observed` gets the observations of all
    blocks; the caller checks it at the end.
    """
    encoder = Encoder(spec, time)

    def encode(numbered: tuple[int, Block]) -> tuple[pa.Table, Statistics, Observations, list[BadRow]]:
        number, block = numbered
        bad_rows: list[BadRow] = []
        seen, statistics = Observations(spec), Statistics(spec)
        chunk = block(bad_rows)
        seen.see_labels(chunk.table)
        if number == 0:  # Counting values takes time, and one block has enough values.
            seen.see_typical(chunk.table)
        table = encoder.encode(chunk, bad_rows, seen)
        if measured:
            statistics.add(table)
        return table, statistics, seen, bad_rows

    workers = [encode] * (num_threads or hardware.usable_cores())
    read = read_ahead(enumerate(blocks), 2, name="reading the input")
    with OrderedMap(workers, read, name="encoding the input") as results:
        for table, statistics, seen, bad_rows in results:
            leave_out(bad_rows)
            observed.merge(seen)
            yield table, statistics
