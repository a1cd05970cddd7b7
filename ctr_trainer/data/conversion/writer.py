"""Writes encoded tables as the Parquet files of a data set."""

import contextlib
import dataclasses
import posixpath
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.data.blocks import ID_PREFIX
from ctr_trainer.data.statistics import Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.local_path import refusing_unwritable
from ctr_trainer.system.files.paths import Path
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass
class Written:
    """What was written for one part: dicts as in `DatasetInfo.files`, and the Statistics of the rows."""

    files: list[dict[str, Any]]
    statistics: Statistics


class DatasetWriter(Written):
    """Writes tables as files and row groups of a fixed number of rows, and computes the data set's statistics.

    `add` is f(name of a file in `directory`) -> its path, called before the file is created. `part` is the part's
    directory below `directory`, "" for `directory` itself. The last file and row group may have fewer rows.
    """

    def __init__(
        self,
        add: Callable[[str], Path],
        directory: Path,
        part: str,
        spec: FeatureSpec,
        rows_per_file: int,
        rows_per_group: int,
    ) -> None:
        super().__init__([], Statistics(spec))
        self._add, self._part, self.path = add, part, directory / part
        self._rows_per_file, self._rows_per_group = max(rows_per_file, rows_per_group), rows_per_group
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._open = contextlib.ExitStack()

    @property
    def rows(self) -> int:
        """Number of rows that were added."""
        return sum(file["rows"] for file in self.files) + self._pending_rows

    def write(self, table: pa.Table, statistics: Statistics | None = None) -> None:
        """Adds an encoded table (see `encode.Encoder`) with its statistics, which are computed here if None."""
        if statistics is None:
            self.statistics.add(table)
        else:
            self.statistics.merge(statistics)
        self._pending.append(table)
        self._pending_rows += len(table)
        if self._pending_rows >= self._rows_per_group:
            self._flush(self._rows_per_group)

    def close(self) -> None:
        """Writes the remaining rows and closes the last file."""
        if self._pending_rows:
            self._flush(1)
        self._close_file()

    def abandon(self) -> None:
        """Closes and removes the file that is being written, if any."""
        if self._writer is None:
            return
        self._writer = None
        with contextlib.suppress(OSError, pa.ArrowInvalid), self._open:
            raise InterruptedError  # An OSError, after which the file is not kept.

    def row_groups(self) -> Iterator[pa.Table]:
        """Yields the written row groups as tables, in order. Requires a call of `close`."""
        for file in self.files:
            with (self.path / file["name"]).open_parquet() as parquet:
                for number in range(len(file["row_groups"])):
                    yield parquet.read_row_group(number)

    def _flush(self, at_least: int) -> None:
        """Writes row groups while at least `at_least` rows are pending."""
        try:
            table = pa.concat_tables(self._pending, promote_options="default")
        except pa.ArrowTypeError as error:
            raise UserError(f"{self.path}: {error}; write the column with one type in all files") from error
        start = 0
        while len(table) - start >= at_least:
            group = table.slice(start, min(self._rows_per_group, self._rows_per_file - self._rows_in_file()))
            self._write_group(group)
            start += len(group)
        # A table without rows still has the types, with which those of later ids are compared.
        self._pending = [table.slice(start)]
        self._pending_rows = len(table) - start

    def _rows_in_file(self) -> int:
        return self.files[-1]["rows"] if self._writer else 0

    def _write_group(self, group: pa.Table) -> None:
        if self._writer is None:
            name = f"part-{len(self.files):05d}.parquet"
            # Keys are hashes, which do not compress, but a dictionary stores repeated keys once.
            schema = _without_nulls(group.schema)
            file = self._open.enter_context(self._add(posixpath.join(self._part, name)).writing())
            self._writer = self._open.enter_context(
                pq.ParquetWriter(file, schema, compression="lz4", write_statistics=False, write_page_checksum=True)
            )
            self.files.append(dict(name=name, rows=0, row_groups=[]))
        with refusing_unwritable(self.path / self.files[-1]["name"]):
            self._writer.write_table(group.cast(self._writer.schema), row_group_size=len(group))
        self.files[-1]["rows"] += len(group)
        self.files[-1]["row_groups"].append(len(group))
        if self._rows_in_file() >= self._rows_per_file:
            self._close_file()

    def _close_file(self) -> None:
        """Closes the file that is being written, if any, and records its size."""
        if self._writer is None:
            return
        self._writer = None
        path = self.path / self.files[-1]["name"]
        with refusing_unwritable(path):
            self._open.close()
            self.files[-1]["bytes"] = path.size()


def _without_nulls(schema: pa.Schema) -> pa.Schema:
    """Declares all columns except ids as non-nullable, because Arrow reads such columns a third faster."""

    def required(field: pa.Field) -> pa.Field:
        if pa.types.is_list(field.type):
            field = field.with_type(pa.list_(field.type.value_field.with_nullable(False)))
        return field.with_nullable(False)

    return pa.schema([f if f.name.startswith(ID_PREFIX) else required(f) for f in schema])
