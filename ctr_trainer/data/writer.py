"""Writes encoded tables as a data set's Parquet files."""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.data.columns import ID_PREFIX
from ctr_trainer.data.dataset import DatasetInfo
from ctr_trainer.data.statistics import Statistics


class DatasetWriter:
    """Collects tables into row groups and files of a fixed number of rows, and counts what goes by.

    The data set exists once `finish` is called; before, the directory has files but no `_dataset.json`.

    Args:
      path: the directory; made if need be, left-over part files of an unfinished conversion are removed.
      spec: FeatureSpec.
      rows_per_file, rows_per_group: the last file and each file's last group may have fewer.
    """

    def __init__(self, path, spec, rows_per_file, rows_per_group):
        self.path, self._spec = pathlib.Path(path), spec
        self._rows_per_file, self._rows_per_group = max(rows_per_file, rows_per_group), rows_per_group
        self._pending, self._pending_rows = [], 0
        self._files, self._writer = [], None
        self.statistics = Statistics(spec)
        self.path.mkdir(parents=True, exist_ok=True)
        for left_over in self.path.glob("part-*.parquet"):
            left_over.unlink()

    def write(self, table):
        """Adds an encoded table (see `encode.Encoder`)."""
        self.statistics.add(table)
        self._pending.append(table)
        self._pending_rows += len(table)
        if self._pending_rows >= self._rows_per_group:
            self._flush(self._rows_per_group)

    def close(self):
        """Writes what is left and closes the last file."""
        if self._pending_rows:
            self._flush(1)
        self._close_file()

    def row_groups(self):
        """Yields the row groups written, as tables in order; only after `close`."""
        for file in self._files:
            with pq.ParquetFile(self.path / file["name"]) as parquet:
                for number in range(len(file["row_groups"])):
                    yield parquet.read_row_group(number)

    def finish(self, bad_rows, fitted=None, extra=None):
        """Declares the data set finished; -> its DatasetInfo.

        Args:
          fitted: what was fitted to the training part; None for this part's own.
        """
        self.close()
        figures = self.statistics.to_dict()
        info = DatasetInfo(
            path=str(self.path),
            spec=self._spec,
            rows=figures["rows"],
            bad_rows=bad_rows,
            label_mean=figures["label_mean"],
            label_means=figures["label_means"],
            labelled=self._spec.labelled,
            distinct=figures["distinct"],
            statistics=fitted or figures["fitted"],
            files=tuple(self._files),
            extra=extra or {},
        )
        info.write()
        return info

    def _flush(self, at_least):
        """Writes whole row groups while `at_least` rows wait."""
        table = pa.concat_tables(self._pending)
        start = 0
        while len(table) - start >= at_least:
            group = table.slice(start, min(self._rows_per_group, self._rows_per_file - self._rows_in_file()))
            self._write_group(group)
            start += len(group)
        self._pending = [table.slice(start)] if start < len(table) else []
        self._pending_rows = len(table) - start

    def _rows_in_file(self):
        return self._files[-1]["rows"] if self._writer else 0

    def _write_group(self, group):
        if self._writer is None:
            name = f"part-{len(self._files):05d}.parquet"
            # Keys are hashes, which no codec makes smaller; their repetition is the dictionary's to use.
            schema = _without_nulls(group.schema)
            self._writer = pq.ParquetWriter(self.path / name, schema, compression="lz4", write_statistics=False)
            self._files.append(dict(name=name, rows=0, row_groups=[]))
        self._writer.write_table(group.cast(self._writer.schema), row_group_size=len(group))
        self._files[-1]["rows"] += len(group)
        self._files[-1]["row_groups"].append(len(group))
        if self._rows_in_file() >= self._rows_per_file:
            self._close_file()

    def _close_file(self):
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _without_nulls(schema):
    """-> the schema with all columns but the ids as such that hold no null, as encoded ones do: read a third faster."""

    def required(field):
        if pa.types.is_list(field.type):
            field = field.with_type(pa.list_(field.type.value_field.with_nullable(False)))
        return field.with_nullable(False)

    return pa.schema([f if f.name.startswith(ID_PREFIX) else required(f) for f in schema])
