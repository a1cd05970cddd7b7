"""Parquet files of Spark, DuckDB, pandas and others, which are converted, or encoded when training reads them."""

import contextlib
import dataclasses
import functools
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tqdm

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRow, BadRows, Block, label_columns
from ctr_trainer.data.encode import Encoder
from ctr_trainer.data.observations import Observations, Positives
from ctr_trainer.data.source import Input, Source, SourceFile, list_files
from ctr_trainer.data.statistics import Statistics
from ctr_trainer.data.typed import Use
from ctr_trainer.features.columns import FITTED, DenseFeature, SparseFeature
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.paths import Advanced, path_of
from ctr_trainer.system.messages.errors import UserError

_MAGIC = b"PAR1"
_ROWS = 50_000  # Rows per batch.
T = TypeVar("T")


def read(files: Iterable[SourceFile], spec: FeatureSpec | None, time: str | None) -> Iterator[Block]:
    """Yields blocks of the columns that the spec needs, without one of all; see `typed` for their types."""
    return _blocks(files, typed.uses(spec, time), spec)


def _blocks(files: Iterable[SourceFile], wanted: dict[str, Use], spec: FeatureSpec | None) -> Iterator[Block]:
    for file in files:
        with open_file(file.path) as parquet:
            present, first = own_columns(file, parquet, wanted, spec) if wanted else None, 0
            try:
                for batch in parquet.iter_batches(_ROWS, columns=present, use_threads=False):
                    table = file.complete(pa.Table.from_batches([batch]), wanted or file.partitions)
                    numbers = np.arange(first + 1, first + 1 + len(table))
                    yield functools.partial(typed.as_chunk, table, wanted, file.path, numbers)
                    first += len(table)
            except (OSError, pa.ArrowInvalid) as error:
                raise UserError(f"{file.path}: cannot be read after row {first}: {error}") from error


def is_parquet(path: str | os.PathLike) -> bool:
    """Whether a file begins with Parquet's magic bytes. Raises UserError if the file cannot be read."""
    try:
        return next(path_of(path).blocks(len(_MAGIC)), b"") == _MAGIC
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def open_file(path: str | os.PathLike) -> pq.ParquetFile:
    """Opens a file. Raises UserError if it is not a readable Parquet file."""
    try:
        return path_of(path).open_parquet()
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: not a readable Parquet file: {error}") from error


def own_columns(
    file: SourceFile, parquet: pq.ParquetFile, wanted: dict[str, Use], spec: FeatureSpec | None
) -> list[str]:
    """Returns the wanted columns that are in the file. Raises UserError unless the others are partition columns."""
    names = parquet.schema_arrow.names
    typed.check(wanted, [*names, *file.partitions], file.path, spec)
    return [name for name in wanted if name in names]


class ForeignParquet(Source):
    """A `Source` of Parquet files with the columns of a feature spec. Each row group is encoded when it is read.

    An unusable row raises UserError, because every epoch must have the same rows. Only a conversion can leave rows out.
    `layout` is the result of `scan`, the same on every worker. Without `labels_needed`, the label of a row that has no
    valid one is NaN.
    """

    def __init__(
        self, layout: dict[str, Any], spec: FeatureSpec, statistics: dict[str, dict], labels_needed: bool = True
    ) -> None:
        files = [(path, rows, size) for path, _, rows, size in layout["files"]]
        cure = "the files must stay as they are while a run reads them"
        super().__init__(layout["name"], spec, statistics, files, cure)
        self._layout = layout
        self._wanted = typed.uses(spec)
        self._partitioned = {path: SourceFile(path, partitions) for path, partitions, _, _ in layout["files"]}
        self._first = [sum(rows[:number]) for _, rows, _ in files for number in range(len(rows))]
        self._observed = Observations(spec)
        self._encoder = Encoder(spec, labels_needed=labels_needed)

    def read(self, group: int) -> pa.Table:
        keys = [name for name, use in self._wanted.items() if use.keys_only]
        table = self._read_group(group, columns=list(self._wanted), dictionaries=keys)
        file = self._partitioned[self._places[group][0]]
        table = file.complete(table, self._wanted)
        typed.check(self._wanted, table.column_names, file.path, self.spec)
        numbers = self._first[group] + 1 + np.arange(len(table))
        bad_rows: list[BadRow] = []
        seen = Observations(self.spec)
        chunk = typed.as_chunk(table, self._wanted, file.path, numbers, bad_rows)
        table = self._encoder.encode(chunk, bad_rows, seen)
        BadRows(unit="row").add(bad_rows)
        self._observed.merge(seen)
        return table

    def label_means(self, advanced: Advanced) -> dict[str, float]:
        """Reads the label columns once, and one feature's column, because every spec needs a feature; see `Source`."""
        dense = self.spec.dense[:1]
        sparse = () if dense else self.spec.sparse[:1]
        return _statistics(self._layout, self.spec, dense, sparse, "labels", advanced).label_means()


def scan(source: Input, spec: FeatureSpec, advanced: Advanced = lambda text: None) -> dict[str, Any]:
    """Reads the footers of Parquet files. Returns the layout, serializable as JSON.

    It has the files, row groups and their numbers of rows, and `labelled`, whether all files have the label columns,
    which they may lack only if the spec is unlabelled. `advanced` is f(text), called after each piece of work. Raises
    UserError if a file is not Parquet, or lacks a column, or if a label has several values, but never its `positive`.
    """
    wanted, layout, labelled = typed.uses(spec), [], True
    for file in _bar(list_files(source), f"scanning {source}", " files", advanced):
        with open_file(file.path) as opened:
            own_columns(file, opened, wanted, spec)
            names = {*opened.schema_arrow.names, *file.partitions}
            labelled = labelled and names.issuperset(label.column for label in spec.labels)
            rows = [opened.metadata.row_group(number).num_rows for number in range(opened.num_row_groups)]
        layout.append((file.path, file.partitions, rows, path_of(file.path).size()))
    for label in label_columns(spec).values():
        positives = Positives(label, spec.csv.label_suffix)
        for block in _blocks(list_files(source), {label.column: wanted[label.column]}, spec):
            positives.add(block([]).table[label.column])
            if positives.found:  # Usually in the first block.
                break
        positives.check()
    return {"name": str(source), "files": layout, "labelled": labelled}


def fit_statistics(
    layout: dict[str, Any], spec: FeatureSpec, advanced: Advanced = lambda text: None
) -> dict[str, dict]:
    """Computes the statistics that transforms and quantiles need, in one pass over a `scan`'s layout."""
    dense = tuple(f for f in spec.dense if f.transform in FITTED)
    quantiles = tuple(f for f in spec.sparse if f.quantiles)
    if not dense and not quantiles:
        return {}
    return _statistics(layout, spec, dense, quantiles, "statistics", advanced).fitted()


def _statistics(
    layout: dict[str, Any],
    spec: FeatureSpec,
    dense: tuple[DenseFeature, ...],
    sparse: tuple[SparseFeature, ...],
    what: str,
    advanced: Advanced,
) -> Statistics:
    """Reads the labels and some features once. `what` names the figures for the bar."""
    part = dataclasses.replace(
        spec, dense=dense, sparse=sparse, cross=(), pretrained=(), ids=(), weight=None, limits=()
    )
    statistics = Statistics(part)
    with contextlib.closing(ForeignParquet(layout, part, {})) as data:
        uses = typed.uses(spec)  # With keys of the same column, numbers may be null values.
        data._wanted = {name: uses[name] for name in data._wanted}
        groups = range(len(data.group_rows))
        for group in _bar(groups, f"{what} of {data.name}", " row groups", advanced):
            statistics.add(data.read(group))
    return statistics


def _bar(items: Iterable[T], what: str, unit: str, advanced: Advanced) -> Iterator[T]:
    bar = tqdm.tqdm(items, desc=what, unit=unit, disable=not sys.stderr.isatty())
    for number, item in enumerate(bar, 1):
        yield item
        advanced(f"{what}: {number:,}{unit}")
