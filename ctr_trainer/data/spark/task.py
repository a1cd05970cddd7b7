"""A conversion task, which encodes and writes the rows of one partition on any machine of the cluster."""

import dataclasses
import functools
import operator
import pickle
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRow, Block
from ctr_trainer.data.conversion.convert import SOURCES
from ctr_trainer.data.conversion.encoded_blocks import encoded
from ctr_trainer.data.conversion.writer import DatasetWriter, Written
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.source import SourceFile
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.outputs import UNFINISHED
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import tensorflow_import

PARTS = "parts/"  # Directory in the data set that contains one directory per task.
SCHEMA = "number int, result binary"
_ROWS = 50_000  # Approximate number of rows per encoded chunk. A Spark batch has 10,000 rows by default.


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a conversion splits the rows and writes them to files; see `convert.convert` for the names.

    Only random splits are supported. The parts have the given shares on average, because each row is assigned
    independently, by `split_seed` and the number of the task. All tasks together may leave out `max_bad_rows` rows.
    """

    split: str | None = None
    split_seed: int = 2026
    rows_per_file: int = 1_000_000
    rows_per_group: int = 50_000
    max_bad_rows: int = 0


@dataclasses.dataclass
class TaskResult:
    """The result of one task or of several consecutive tasks, the first of which has this `number`.

    `parts` is what the tasks wrote for each part, in order. `bad_rows` were left out, at most `max_bad_rows` + 1 per
    task. `error` is the message of the first task that failed; "" if none did.
    """

    number: int
    parts: dict[str, Written]
    observed: Observations
    bad_rows: list[BadRow]
    error: str = ""

    def merge(self, other: "TaskResult") -> None:
        """Adds the result of the next tasks."""
        for name, part in other.parts.items():
            self.parts[name].files += part.files
            self.parts[name].statistics.merge(part.statistics)
        self.observed.merge(other.observed)
        self.bad_rows += other.bad_rows
        self.error = self.error or other.error


@dataclasses.dataclass(frozen=True)
class Task:
    """The parameters of a conversion, which Spark sends to all tasks.

    `output` must be the same path or URL on every machine of the cluster. `fractions` are the shares of the parts of a
    random split; {"": 1.0} for no split.
    """

    spec: FeatureSpec
    output: str
    layout: Layout
    fractions: dict[str, float]

    def convert_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Converts a partition of a DataFrame, for `mapInArrow`, to one row of `SCHEMA`: a pickled TaskResult."""
        number = _number()
        yield self._result(number, _blocks(batches, self.spec, f"partition {number}"))

    def convert_files(
        self, batches: Iterator[pa.RecordBatch], format: str, units: Sequence[Sequence[SourceFile]]
    ) -> Iterator[pa.RecordBatch]:
        """Converts files; a function for `mapInArrow`. The rows are indices in `units`, lists of `SourceFile`."""
        files = [file for batch in batches for at in batch.column(0).to_pylist() for file in units[at]]
        yield self._result(_number(), SOURCES[format](files, self.spec, None) if files else ())

    def _result(self, number: int, blocks: Iterable[Block]) -> pa.RecordBatch:
        """Converts the rows of blocks. Returns the RecordBatch of the TaskResult."""
        tensorflow_import.load()
        # Spark may run a task twice, even concurrently. The driver keeps the files of one attempt.
        attempt = f"{PARTS}{number:05d}-{uuid.uuid4().hex[:8]}"
        chance, layout = np.random.default_rng([self.layout.split_seed, number]), self.layout
        observed, error = Observations(self.spec), ""
        bad_rows: list[BadRow] = []
        output = path_of(self.output)
        writers = {
            part: DatasetWriter(
                add=functools.partial(_add, output),
                directory=output,
                part=posixpath.join(part, attempt),
                spec=self.spec,
                rows_per_file=layout.rows_per_file,
                rows_per_group=layout.rows_per_group,
            )
            for part in self.fractions
        }
        try:
            for table, statistics in encoded(blocks, self.spec, bad_rows.extend, observed, num_threads=1):
                if len(bad_rows) > layout.max_bad_rows:
                    break  # The driver checks the number of bad rows over all tasks.
                if len(writers) == 1:
                    writers[""].write(table, statistics)
                    continue
                where = chance.choice(len(writers), len(table), p=list(self.fractions.values()))
                for at, writer in enumerate(writers.values()):
                    writer.write(table.take(np.flatnonzero(where == at)))
            for writer in writers.values():
                writer.close()
        except UserError as failed:
            error = str(failed)
        finally:
            for writer in writers.values():
                writer.abandon()
        parts = {}
        for part, writer in writers.items():
            files = [{**file, "name": f"{attempt}/{file['name']}"} for file in writer.files]
            parts[part] = Written(files, writer.statistics)
        return _batch(TaskResult(number, parts, observed, bad_rows[: layout.max_bad_rows + 1], error))


def merge(batches: Iterator[pa.RecordBatch], width: int) -> Iterator[pa.RecordBatch]:
    """Merges the results of `width` consecutive tasks each; a function for `mapInArrow`.

    All results with the same `number // width` must be in one partition. It is safe to unpickle them, because the tasks
    of this Spark job pickled them.
    """
    results = [pickle.loads(row) for batch in batches for row in batch.column(1).to_pylist()]
    groups: dict[int, TaskResult] = {}
    for result in sorted(results, key=operator.attrgetter("number")):
        group = groups.setdefault(result.number // width, result)
        if group is not result:
            group.merge(result)
    for group in groups.values():
        yield _batch(group)


def _batch(result: TaskResult) -> pa.RecordBatch:
    columns = [pa.array([result.number], pa.int32()), pa.array([pickle.dumps(result)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, ["number", "result"])


def _number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "it runs in a task"
    return context.partitionId()


def _blocks(batches: Iterable[pa.RecordBatch], spec: FeatureSpec, name: str) -> Iterator[Block]:
    """Yields blocks of a DataFrame's rows."""
    wanted, first = typed.uses(spec), 0
    for table in _tables(batches):
        columns = {column: _in_utc(table[column]) for column in table.column_names}
        numbers = np.arange(first + 1, first + 1 + len(table))
        yield functools.partial(typed.as_chunk, pa.table(columns), wanted, name, numbers)
        first += len(table)


def _tables(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Concatenates consecutive batches to tables of at least `_ROWS` rows. The last table may have fewer rows."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        waiting.append(batch)
        if sum(map(len, waiting)) >= _ROWS:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if any(map(len, waiting)):
        yield pa.Table.from_batches(waiting)


def _in_utc(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts times from the session's time zone to UTC, as in Parquet. Returns other columns unchanged."""
    if pa.types.is_timestamp(values.type) and values.type.tz:
        return values.cast(pa.timestamp(values.type.unit, "UTC"))
    return values


def _add(directory: Path, name: str) -> Path:
    """Returns the path of a file and creates its directory. Raises UserError without the driver's `UNFINISHED`."""
    if not (directory / UNFINISHED).exists():
        raise UserError(
            f"{directory}: a task does not find the driver's {UNFINISHED} there; choose an output directory that every "
            "machine of the cluster sees"
        )
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
