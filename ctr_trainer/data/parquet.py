"""The `parquet` format: Parquet made elsewhere, by Spark, DuckDB, pandas and others."""

import os
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.data import typed
from ctr_trainer.data.blocks import BadRowSink, Chunk
from ctr_trainer.data.listing import Input, SourceFile, list_files
from ctr_trainer.data.typed import Use
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

_MAGIC = b"PAR1"
_ROWS = 50_000  # Rows in memory at a time.


def read(source: Input, spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None) -> Iterator[Chunk]:
    """Yields Chunks of the columns that the spec wants; `typed` says what each type becomes.

    A `blocks.SourceReader`; `source` is taken as by `list_files`.
    """
    yield from read_files(list_files(source), spec, bad_rows, time)


def read_files(
    files: Iterable[SourceFile], spec: FeatureSpec, bad_rows: BadRowSink, time: str | None = None
) -> Iterator[Chunk]:
    """Yields the Chunks of a list of `SourceFile`; see `read`."""
    wanted = typed.uses(spec, time)
    for file in files:
        with open_file(file.path) as parquet:
            present = own_columns(file, parquet, wanted, spec)
            first = 0
            try:
                for batch in parquet.iter_batches(_ROWS, columns=present, use_threads=False):
                    table = file.complete(pa.Table.from_batches([batch]), wanted)
                    numbers = np.arange(first + 1, first + 1 + len(table))
                    yield typed.as_chunk(table, wanted, file.path, numbers, bad_rows)
                    first += len(table)
            except (OSError, pa.ArrowInvalid) as error:
                raise UserError(f"{file.path}: cannot be read after row {first}: {error}") from error


def is_parquet(path: str | os.PathLike) -> bool:
    """Whether a file begins as Parquet files do.

    Raises:
      UserError: the file cannot be read.
    """
    try:
        return next(path_of(path).blocks(len(_MAGIC)), b"") == _MAGIC
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error


def open_file(path: str | os.PathLike) -> pq.ParquetFile:
    """Opens a Parquet file.

    Raises:
      UserError: the file is no Parquet file.
    """
    try:
        return path_of(path).open_parquet()
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: not a Parquet file that can be read: {error}") from error


def own_columns(file: SourceFile, parquet: pq.ParquetFile, wanted: dict[str, Use], spec: FeatureSpec) -> list[str]:
    """Returns the wanted columns that are in the file, and not only in its directories' names.

    Raises:
      UserError: a wanted column is neither in the file nor in its directories' names.
    """
    names = parquet.schema_arrow.names
    typed.check(wanted, [*names, *file.partitions], file.path, spec)
    return [name for name in wanted if name in names]
