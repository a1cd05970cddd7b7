"""Converts data on a Spark cluster. The driver starts the tasks, checks their results and completes the data set."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import operator
import os
import pickle
import posixpath
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ctr_trainer.data.blocks import BadRows
from ctr_trainer.data.conversion.convert import bad_rows_of, describe, new_data_set, refuse_inputs, result_of
from ctr_trainer.data.conversion.writer import Written
from ctr_trainer.data.dataset import Split
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.source import Input, SourceFile, list_files
from ctr_trainer.data.spark.task import PARTS, SCHEMA, Layout, Task, TaskResult, merge
from ctr_trainer.data.typed import check, uses
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.child import default_environment

if TYPE_CHECKING:  # PySpark is optional.
    from pyspark.sql import DataFrame, SparkSession

FORMATS = ("criteo", "csv", "libffm", "libsvm", "parquet", "tfrecord")
_MERGED = 32  # Number of results, each of up to some megabytes, to merge before the driver collects them.
UNIT_BYTES = 256 << 20  # Approximate bytes of input files per task: a million rows of Criteo's text.

DEFAULT = Layout()


def convert(
    dataframe: DataFrame, spec: FeatureSpec, output: str | os.PathLike, layout: Layout = DEFAULT
) -> dict[str, Any]:
    """Converts a DataFrame to a data set. Columns are encoded in the same way as Parquet columns.

    The rows of each partition are written, in order, to one file or to several files of `layout.rows_per_file` rows.
    A first pass counts the rows, and partitions are merged with `coalesce` so that they have at least
    `layout.rows_per_group` rows on average.

    Args:
      dataframe: DataFrame of Spark 3.5 or 4, with the columns of the spec.
      spec: FeatureSpec; for data to predict on, `spec.without_labels()`.
      output: directory to write, which all machines of the cluster see under this path. It must be absent or empty, or
        contain an unfinished conversion, which is removed.
      layout: `Layout`.

    Returns:
      dict; see `convert.convert`.

    Raises:
      UserError: the DataFrame does not match the spec, a task failed, there are too many bad rows, or `output` contains
        other files. A conversion that fails removes its files.
    """
    check(uses(spec), dataframe.columns, "the DataFrame", spec)
    dataframe = _sized(dataframe.select(*(f"`{column}`" for column in uses(spec))), layout.rows_per_group)

    def run(task: Task) -> DataFrame:
        return dataframe.mapInArrow(task.convert_rows, SCHEMA)

    return _convert(run, BadRows(layout.max_bad_rows, unit="row"), spec, output, layout)


def convert_files(
    spark: SparkSession,
    format: str,
    input: Input,
    output: str | os.PathLike,
    spec: FeatureSpec,
    layout: Layout = DEFAULT,
) -> dict[str, Any]:
    """Converts files, which all machines of the cluster see under the same paths, to a data set; see `convert`.

    A task reads whole files: one large file, or small files until they have 256 MB together. The rows have the same
    order as in a conversion without Spark. `format` is one of `FORMATS`; for `input`, see `convert.convert`.
    """
    if format not in FORMATS:
        raise UserError(f"Spark converts {', '.join(FORMATS)}, not {format}: use engine=local")
    refuse_inputs(path_of(output), input)
    files = [dataclasses.replace(file, path=str(path_of(file.path).absolute())) for file in list_files(input)]
    units = _units(files)

    def run(task: Task) -> DataFrame:
        numbers = spark.range(0, len(units), 1, len(units))
        return numbers.mapInArrow(functools.partial(task.convert_files, format=format, units=units), SCHEMA)

    return _convert(run, bad_rows_of(format, layout.max_bad_rows), spec, output, layout)


def _convert(
    run: Callable[[Task], DataFrame],
    bad_rows: BadRows,
    spec: FeatureSpec,
    output: str | os.PathLike,
    layout: Layout,
) -> dict[str, Any]:
    """Runs the tasks and commits their files. `run(Task)` returns a DataFrame of `task.SCHEMA` with a row per task."""
    start, target = time.perf_counter(), path_of(output).absolute()
    split = Split.parse(layout.split)
    if split and split.kind != "random":
        raise UserError(
            f"split {split.kind}: Spark supports only random splits; filter the rows by time and convert each part"
        )
    fractions = dict(zip(split.parts, split.fractions, strict=True)) if split else {"": 1.0}
    observed = Observations(spec)
    with new_data_set(target) as directory:
        directory.add(*(posixpath.join(part, PARTS) for part in fractions))
        parts = _judged(_collected(run(Task(spec, str(target), layout, fractions))), bad_rows, observed)
        for name, part in parts.items():  # Removes the files of superseded attempts, in case Spark ran a task twice.
            own = {posixpath.dirname(file["name"]) for file in part.files}
            there = {posixpath.dirname(file) for file in (target / name).files() if file.startswith(PARTS)}
            for other in there - own:
                (target / name / other).remove_all()
        infos = describe(directory, spec, parts, bad_rows.count, observed)
    return result_of(target, start, bad_rows, infos, observed)


def _sized(dataframe: DataFrame, rows_per_group: int) -> DataFrame:
    from pyspark.sql import functions

    counts = [row["count"] for row in dataframe.groupBy(functions.spark_partition_id()).count().collect()]
    most = max(1, sum(counts) // rows_per_group)
    return dataframe.coalesce(most) if len(counts) > most else dataframe


def _units(files: Iterable[SourceFile]) -> list[list[SourceFile]]:
    """Groups files, in order, into lists of at least about `UNIT_BYTES` each."""
    units: list[list[SourceFile]] = []
    size = math.inf
    for file in files:
        if size >= UNIT_BYTES:
            units.append([])
            size = 0
        units[-1].append(file)
        size += path_of(file.path).size()
    return units


def _collected(frame: DataFrame) -> list[TaskResult]:
    """Runs the tasks and returns their results in order. Each further task merges the results of `_MERGED` tasks."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException
    from pyspark.sql import functions

    group = functions.floor(functions.col("number") / _MERGED)
    merged = frame.repartition(group).mapInArrow(functools.partial(merge, width=_MERGED), SCHEMA)
    try:
        rows = merged.collect()
    except (PySparkException, Py4JError) as error:
        raise UserError(f"Spark: the job failed: {str(error)[:2000]}") from error
    return sorted((pickle.loads(row["result"]) for row in rows), key=operator.attrgetter("number"))


def _judged(found: Sequence[TaskResult], bad_rows: BadRows, observed: Observations) -> dict[str, Written]:
    """Merges the results of all tasks, and returns the result of each part. Raises UserError if a task failed."""
    if not found:
        raise UserError("the input has no rows")
    whole = found[0]
    for result in found[1:]:
        whole.merge(result)
    bad_rows.add(whole.bad_rows)
    if whole.error:
        raise UserError(whole.error)
    observed.merge(whole.observed)
    observed.check()
    if not sum(part.statistics.rows for part in whole.parts.values()):
        raise UserError("the input has no rows")
    return whole.parts


@contextlib.contextmanager
def session() -> Iterator[SparkSession]:
    """Uses the active SparkSession, such as a notebook's, or starts one, which it stops with its tasks at the end.

    Spark's own settings specify the cluster: `spark-defaults.conf`, `spark-submit --master` or PYSPARK_SUBMIT_ARGS.
    Without them, Spark uses all cores of this machine.
    """
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise UserError("engine=spark needs PySpark 3.5 or 4: pip install 'ctr_trainer[spark]', and Java") from error
    if active := SparkSession.getActiveSession():
        yield active
        return
    # Without this variable, executors use the first python3 on their PATH.
    with default_environment({"PYSPARK_PYTHON": sys.executable}):
        try:
            spark = SparkSession.builder.appName("ctr_trainer convert").getOrCreate()
        except (PySparkException, RuntimeError) as error:
            raise UserError(f"Spark does not start: {error}; it needs Java 17 (JAVA_HOME)") from error
        try:
            yield spark
        finally:
            spark.stop()
