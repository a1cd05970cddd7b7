"""The `parquet` format: Parquet made elsewhere, by Spark, DuckDB, pandas and others."""

import dataclasses
import glob
import pathlib
import urllib.parse

import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.data import typed
from ctr_trainer.errors import UserError

_ROWS = 50_000  # in memory at a time
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclasses.dataclass(frozen=True)
class ParquetFile:
    """A file, and the columns that its directories' names hold (`date=2024-01-31/part-0.parquet`), null for none."""

    path: str
    partitions: dict[str, str | None]

    def complete(self, table, wanted):
        """-> the table with those of the partition columns that are wanted and that it lacks."""
        for name, value in self.partitions.items():
            if name in wanted and name not in table.column_names:
                column = pa.DictionaryArray.from_arrays(
                    pa.array([0 if value is not None else None] * len(table), pa.int32()),
                    pa.array([] if value is None else [value], pa.string()),
                )
                table = table.append_column(name, column)
        return table


def read(source, spec, bad_rows, time=None):
    """Yields Chunks of the columns that the spec wants; see `typed` for what each type becomes.

    Args:
      source: a file, a directory (all files below it whose names and directories do not begin with `_` or `.`), a
        glob, or a list of them.
      spec: FeatureSpec.
      bad_rows: BadRows.
      time: the column of a split by time.

    Raises:
      UserError: no such file, one that is not Parquet, or one that lacks a column.
    """
    wanted = typed.uses(spec, time)
    for file in files(source):
        with open_file(file.path) as parquet:
            present = own_columns(file, parquet, wanted, spec)
            first = 0
            try:
                for batch in parquet.iter_batches(_ROWS, columns=present, use_threads=False):
                    table = file.complete(pa.Table.from_batches([batch]), wanted)
                    yield typed.as_chunk(table, wanted, file.path, first, bad_rows)
                    first += len(table)
            except (OSError, pa.ArrowInvalid) as error:
                raise UserError(f"{file.path}: cannot be read after row {first}: {error}") from error


def files(source):
    """-> the ParquetFiles that `source` stands for, those of a directory or glob by name.

    Raises:
      UserError: nothing is there.
    """
    found = []
    for name in [source] if isinstance(source, (str, pathlib.Path)) else source or []:
        matches = [str(name)] if pathlib.Path(name).exists() else sorted(glob.glob(str(name)))
        below = [file for match in matches for file in _below(pathlib.Path(match))]
        if not below:
            what = "it has no file" if pathlib.Path(name).is_dir() else "no such file or directory, and none matches it"
            raise UserError(f"input {name}: {what}; expected Parquet, as a file, a directory or a pattern")
        found += below
    if not found:
        raise UserError("no input: give a file, a directory, or a pattern such as 'day_*.parquet'")
    return found


def open_file(path):
    """-> `pq.ParquetFile`.

    Raises:
      UserError: it is no Parquet file.
    """
    try:
        return pq.ParquetFile(path, memory_map=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: not a Parquet file that can be read: {error}") from error


def own_columns(file, parquet, wanted, spec):
    """-> the wanted columns that the file itself has.

    Raises:
      UserError: one is neither in it nor in its directories' names.
    """
    names = parquet.schema_arrow.names
    typed.check(wanted, [*names, *file.partitions], file.path, spec)
    return [name for name in wanted if name in names]


def _below(path):
    if not path.is_dir():
        return [ParquetFile(str(path), {})]
    return [
        ParquetFile(str(file), _partitions(file.relative_to(path).parts[:-1]))
        for file in sorted(path.rglob("*"))
        if file.is_file() and not any(part[0] in "_." for part in file.relative_to(path).parts)
    ]


def _partitions(directories):
    pairs = [directory.partition("=") for directory in directories if "=" in directory]
    return {
        urllib.parse.unquote(name): None if value == _NO_VALUE else urllib.parse.unquote(value)
        for name, _, value in pairs
    }
