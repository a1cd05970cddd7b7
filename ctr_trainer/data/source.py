"""Lists the files of a source, and reads row groups for a `BatchReader`."""

import abc
import copy
import dataclasses
import hashlib
import json
import os
import posixpath
import urllib.parse
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.data.blocks import concatenated
from ctr_trainer.data.dataset import FILE, open_dataset
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Advanced, Path, path_of
from ctr_trainer.system.messages.errors import UserError

Input = str | os.PathLike | Sequence[str | os.PathLike]  # A path, URL or pattern, or a list of them.
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
Named = str | os.PathLike | Path
_DRAWN = 16  # Row groups that a sample is drawn from, if they have enough rows.
_MOST_OPEN = 64  # Largest number of open files. A data set from Spark may have thousands of files.


@dataclasses.dataclass(frozen=True)
class SourceFile:
    """A file and its partition columns, which are in directory names, as in `date=2024-01-31/part-0.parquet`.

    The value of a partition column is None for Hive's name for a missing value.
    """

    path: str
    partitions: dict[str, str | None]

    def __fspath__(self) -> str:
        return self.path

    def complete(self, table: pa.Table, wanted: Iterable[str]) -> pa.Table:
        """Adds the wanted partition columns that the table lacks."""
        for name, value in self.partitions.items():
            if name in wanted and name not in table.column_names:
                table = table.append_column(name, pa.array([value] * len(table), pa.string()).dictionary_encode())
        return table


def list_files(source: Input) -> list[SourceFile]:
    """Lists the files of a source. Files of a directory or pattern are sorted by name.

    A source is a file; a directory, for all files below it, except files and directories whose names begin with `_` or
    `.`; a pattern of files or directories; or a list of them. Each is a path or a URL, or a `SourceFile`, which stays
    as it is. Raises UserError without a file, or if a file is there twice.
    """
    found, taken = [], set[str]()
    for name in named(source):
        if not str(name):
            raise UserError("input: an empty path, as of an empty list or after a comma; expected a file or directory")
        if isinstance(name, SourceFile):
            below = [name]
        else:
            path = path_of(name)
            below = [file for match in ([path] if path.exists() else path.matches()) for file in _below(match)]
        if not below:
            what = "the directory has no file" if path.is_dir() else "no such file or directory, and none matches it"
            raise UserError(f"input {name}: {what}; expected a file, a directory or a pattern")
        for file in below:
            if file.path in taken:
                raise UserError(f"input {file.path}: it is there twice, by overlapping paths or patterns; list it once")
            taken.add(file.path)
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
    names = [name for name in path.entries() if not _is_hidden(posixpath.dirname(name))]
    if found := [str((path / name).parent) for name in names if posixpath.basename(name) == FILE]:
        raise UserError(
            f"input {path}: converted data in {', '.join(found)}, whose keys would be hashed again; expected raw data. "
            "Where converted data is expected, name one such directory itself"
        )
    names = [name for name in names if not _is_hidden(name) and not _is_left_out(path, name)]
    return [SourceFile(str(path / name), _partitions(name.split("/")[:-1])) for name in names]


def _is_hidden(name: str) -> bool:
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def _is_left_out(path: Path, name: str) -> bool:
    """Returns whether a name below an input directory is no file, or a link to a directory that is read anyway."""
    if not isinstance(path, LocalPath) or (path / name).is_file():
        return False
    file = path / name
    inside = os.path.relpath(file.resolve(), path.resolve())  # It begins with ".." for a place elsewhere.
    if file.is_symlink() and (not file.is_dir() or _is_hidden(inside)):
        raise UserError(
            f"input {path}: {name} is a link to a directory elsewhere or to nothing, which is not followed; list the "
            "directories to read, or give the link a name that begins with '_'"
        )
    return True


def _partitions(directories: Iterable[str]) -> dict[str, str | None]:
    pairs = [directory.partition("=") for directory in directories if "=" in directory]
    return {
        urllib.parse.unquote(name): None if value == _NO_VALUE else urllib.parse.unquote(value)
        for name, _, value in pairs
    }


class Source(abc.ABC):
    """The row groups of Parquet files as encoded rows (see `encode.Encoder`). A source is not thread-safe.

    The row groups are numbered consecutively over all files, and can be read in any order. `group_rows` are their rows,
    and `files` describes the files for saved positions. `statistics` are those of the training data by dense feature,
    {} if unknown. The argument `files` has (path, rows of each row group, size in bytes) of each file, and `cure` is
    advice for the message about a changed file, such as `convert the data again`. `content` are figures, serializable
    as JSON, which distinguish data whose files have equal sizes.
    """

    def __init__(
        self,
        name: str,
        spec: FeatureSpec,
        statistics: dict[str, dict],
        files: Sequence[tuple[Named, Sequence[int], int]],
        cure: str,
        content: Sequence[object] = (),
    ) -> None:
        self.name, self.spec, self.statistics, self._cure = name, spec, statistics, cure
        self._places = [(path, number) for path, rows, _ in files for number in range(len(rows))]
        self.group_rows = tuple(count for _, rows, _ in files for count in rows)
        self.files = _description([(size, *rows) for _, rows, size in files], content)
        self._open: dict[Named, pq.ParquetFile] = {}
        self._sizes = {path: size for path, _, size in files}
        self._stamps: dict[Named, tuple[int, int]] = {}  # When each file was first opened, by any copy.

    @abc.abstractmethod
    def read(self, group: int) -> pa.Table:
        """Returns the encoded table of a row group. Raises UserError if a file was removed or changed."""

    @abc.abstractmethod
    def label_means(self, advanced: Advanced) -> dict[str, float]:
        """Returns the share of positive examples by label; `advanced` is called with texts of progress."""

    def sample(self, rows: int, seed: int = 0) -> pa.Table:
        """Returns the encoded table of `rows` rows, or of all if there are fewer, drawn at random, in their order.

        From many rows, they are drawn from 16 random row groups or more, so that not all of the data has to be read.
        """
        rng, sizes = np.random.default_rng(seed), np.array(self.group_rows)
        order = rng.permutation(len(sizes))
        enough = int(np.searchsorted(np.cumsum(sizes[order]), rows)) + 1
        groups = np.sort(order[: max(enough, _DRAWN)])
        starts = np.cumsum(sizes[groups]) - sizes[groups]
        count = int(sizes[groups].sum())
        if not count:
            raise UserError(f"data set {self.name}: it has no rows")
        drawn = np.sort(rng.choice(count, min(rows, count), replace=False, shuffle=False))
        parts = np.split(drawn, np.searchsorted(drawn, starts[1:]))
        tables = [self.read(int(g)).take(part - start) for g, part, start in zip(groups, parts, starts, strict=True)]
        return concatenated(tables, self.name).combine_chunks()

    def reopened(self) -> "Source":
        """Returns a copy of the source for another thread. The copy opens the files separately."""
        other = copy.copy(self)
        other._open = {}
        return other

    def close(self) -> None:
        """Closes the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _read_group(self, group: int, columns: list[str] | None = None, dictionaries: Sequence[str] = ()) -> pa.Table:
        """Reads `columns`, or all, of a row group. String columns in `dictionaries` are read as dictionaries."""
        path, number = self._places[group]
        try:
            if path not in self._open:
                if len(self._open) == _MOST_OPEN:
                    self._open.pop(next(iter(self._open))).close()
                self._check_unchanged(path)
                self._open[path] = _open(path, dictionaries)
            # A thread pool would compete with training for the core.
            table = self._open[path].read_row_group(number, columns=columns, use_threads=False)
        except (OSError, IndexError, pa.ArrowInvalid) as error:
            raise UserError(f"{path}: row group {number} cannot be read: {error}; {self._cure}") from error
        if len(table) != self.group_rows[group]:
            raise UserError(
                f"{path}: row group {number} has {len(table)} rows, expected {self.group_rows[group]}: the file has "
                f"changed; {self._cure}"
            )
        return table

    def _check_unchanged(self, path: Named) -> None:
        """Raises UserError if a file has another size than expected, or was written since it was first opened."""
        stamp, size = path_of(path).stamp(), self._sizes[path]
        if stamp[0] != size:
            raise UserError(f"{path}: it has changed: {stamp[0]:,} bytes, expected {size:,}; {self._cure}")
        if stamp != self._stamps.setdefault(path, stamp):
            raise UserError(f"{path} was written again while it was read; run again when its files are complete")


def _description(files: Sequence[Sequence[int]], content: Sequence[object]) -> str:
    """Returns `"2 files, 5 row groups, SHA-256 5feceb66ffc86f38"` of lists: a file's size, then its groups' rows."""
    # The digest covers the content's figures, but no paths, so the data can be moved.
    digest = hashlib.sha256(json.dumps([*files, *content]).encode()).hexdigest()[:16]
    return f"{len(files)} files, {sum(len(each) - 1 for each in files)} row groups, SHA-256 {digest}"


def _open(path: Named, dictionaries: Sequence[str]) -> pq.ParquetFile:
    if not dictionaries:
        return path_of(path).open_parquet()
    with path_of(path).open_parquet() as file:
        metadata = file.metadata
    columns = [metadata.schema.column(at) for at in range(metadata.num_columns)]
    text = [c.path for c in columns if c.path in dictionaries and c.physical_type == "BYTE_ARRAY"]
    return path_of(path).open_parquet(metadata=metadata, read_dictionary=text)


class ComputedSource(Source):
    """A source whose row groups are computed: `compute(source, group)` returns an encoded table."""

    def __init__(
        self, source: Source, spec: FeatureSpec, rows: Sequence[int], compute: Callable[[Source, int], pa.Table]
    ) -> None:
        super().__init__(source.name, spec, source.statistics, [("", rows, 0)], "")
        self._source, self._compute = source, compute

    def read(self, group: int) -> pa.Table:
        return self._compute(self._source, group)

    def label_means(self, advanced: Advanced) -> dict[str, float]:
        return self._source.label_means(advanced)

    def reopened(self) -> "ComputedSource":
        return ComputedSource(self._source.reopened(), self.spec, self.group_rows, self._compute)

    def close(self) -> None:
        self._source.close()


class ConvertedData(Source):
    """A data set that `convert` wrote. Raises UserError if the path has no finished data set."""

    def __init__(self, path: str | os.PathLike) -> None:
        info = open_dataset(path)
        files = [(path_of(info.path) / file["name"], file["row_groups"], file["bytes"]) for file in info.files]
        content = [info.label_means, info.distinct]
        super().__init__(str(path), info.spec, info.statistics, files, "convert the data again", content)
        self._label_means = info.label_means

    def read(self, group: int) -> pa.Table:
        return self._read_group(group)

    def label_means(self, advanced: Advanced) -> dict[str, float]:
        return self._label_means


def source_of(data: str | os.PathLike | Source) -> Source:
    """Returns `data` itself if it is a `Source`, otherwise the `ConvertedData` at this path."""
    return ConvertedData(data) if isinstance(data, str | os.PathLike) else data
