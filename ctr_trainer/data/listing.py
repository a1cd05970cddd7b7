"""Lists the files of a source, which is a file, a directory or a pattern."""

import dataclasses
import os
import urllib.parse
from collections.abc import Iterable, Sequence

import pyarrow as pa

from ctr_trainer.system.files.path import Path
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

Input = str | os.PathLike | Sequence[str | os.PathLike]  # A path, URL or pattern, or a list of them.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A file, and the columns in the names of its directories, as in `date=2024-01-31/part-0.parquet`.

    Attributes:
      path: path or URL of the file.
      partitions: dict of column -> value; None for Hive's name of a missing value.
    """

    path: str
    partitions: dict[str, str | None]

    def complete(self, table: pa.Table, wanted: Iterable[str]) -> pa.Table:
        """Adds the wanted partition columns that the table lacks."""
        for name, value in self.partitions.items():
            if name in wanted and name not in table.column_names:
                column = pa.DictionaryArray.from_arrays(
                    pa.array([0 if value is not None else None] * len(table), pa.int32()),
                    pa.array([] if value is None else [value], pa.string()),
                )
                table = table.append_column(name, column)
        return table


def list_files(source: Input) -> list[SourceFile]:
    """Lists the files of a source. Files of a directory or pattern are sorted by name.

    Args:
      source: a file; a directory, for all files below it, except files and directories whose names begin with `_` or
        `.`; a pattern of files or directories; or a list of files, directories and patterns. Each is a path or a URL.

    Returns:
      list of `SourceFile`.

    Raises:
      UserError: there is no file.
    """
    found = []
    for name in named(source):
        path = path_of(name)
        below = [file for match in ([path] if path.exists() else path.matches()) for file in _below(match)]
        if not below:
            what = "the directory has no file" if path.is_dir() else "no such file or directory, and none matches it"
            raise UserError(f"input {name}: {what}; expected a file, a directory or a pattern")
        found += below
    if not found:
        raise UserError("no input: give a file, a directory, or a pattern such as 'day_*.parquet'")
    return found


def named(source: Input | None) -> Sequence[str | os.PathLike]:
    """Returns a source as a list of paths, URLs and patterns."""
    return [source] if isinstance(source, (str, os.PathLike)) else source or []


def _below(path: Path) -> list[SourceFile]:
    if not path.is_dir():
        return [SourceFile(str(path), {})]
    return [
        SourceFile(str(path / name), _partitions(name.split("/")[:-1]))
        for name in path.files()
        if not any(part[0] in "_." for part in name.split("/"))
    ]


def _partitions(directories: Iterable[str]) -> dict[str, str | None]:
    pairs = [directory.partition("=") for directory in directories if "=" in directory]
    return {
        urllib.parse.unquote(name): None if value == _NO_VALUE else urllib.parse.unquote(value)
        for name, _, value in pairs
    }
