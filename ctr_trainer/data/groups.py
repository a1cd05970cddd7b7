"""Row groups of a data set's Parquet files as arrays."""

import pathlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.data.batch import Bag
from ctr_trainer.data.columns import ID_PREFIX, WEIGHT, WEIGHTS_PREFIX, label_columns
from ctr_trainer.data.rows import Rows, concatenate
from ctr_trainer.errors import UserError
from ctr_trainer.features import buckets


class RowGroups:
    """Reads row groups, numbered over all files; for one thread at a time.

    Args:
      info: DatasetInfo; its statistics place the boundaries of quantiles.

    Raises:
      UserError: a feature lacks its statistics.
    """

    def __init__(self, info):
        self._info = info
        self._buckets = buckets.of_spec(info.spec, info.statistics)
        self._places = [
            (pathlib.Path(info.path) / file["name"], number)
            for file in info.files
            for number in range(len(file["row_groups"]))
        ]
        self.rows = tuple(rows for file in info.files for rows in file["row_groups"])
        self._open = {}

    def read(self, groups):
        """-> Rows of the row groups, in the order given.

        Raises:
          UserError: a file is gone or not the one that was converted.
        """
        spec, total = self._info.spec, sum(self.rows[g] for g in groups)
        keys = {t.name: np.empty((total, len(t.single)), np.int64) for t in spec.tables}
        dense = np.empty((total, len(spec.dense)), np.float32)
        rest, start = [], 0
        for group in groups:
            columns = self._columns(group)
            part = slice(start, start := start + self.rows[group])
            for table in spec.tables:
                for at, feature in enumerate(table.single):
                    values = columns[feature.name].to_numpy()
                    values = self._buckets[feature.name].keys(values) if feature.is_bucketised else values
                    keys[table.name][part, at] = values
            for at, feature in enumerate(spec.dense):
                dense[part, at] = columns[feature.name].to_numpy()
            rest.append(_rest(spec, columns))
        rows = concatenate(rest)
        return Rows(keys, rows.bags, dense, rows.labels, rows.weights, rows.ids)

    def close(self):
        """Closes the files."""
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _columns(self, group):
        path, number = self._places[group]
        try:
            if path not in self._open:
                self._open[path] = pq.ParquetFile(path, memory_map=True)
            columns = self._open[path].read_row_group(number)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"{path}: row group {number} cannot be read: {error}; convert the data again") from error
        if len(columns) != self.rows[group]:
            raise UserError(
                f"{path}: row group {number} has {len(columns)} rows and should have {self.rows[group]}: the file is "
                "not the one that _dataset.json describes; convert the data again"
            )
        return columns


def _rest(spec, columns):
    """The columns that are no matrix of features: bags, labels, weights, ids."""
    labels = [columns[name].to_numpy() for name in label_columns(spec)]
    return Rows(
        keys={},
        bags={f.name: _bag(columns, f) for f in (*spec.bags, *spec.sequences)},
        dense=np.empty((len(columns), 0), np.float32),
        labels=labels[0] if len(labels) == 1 else np.stack(labels, 1),
        weights=columns[WEIGHT].to_numpy() if spec.weight else np.ones(len(columns), np.float32),
        ids={name: columns[ID_PREFIX + name].to_numpy() for name in spec.ids},
    )


def _bag(columns, feature):
    column = columns[feature.name].combine_chunks()
    splits = column.offsets.to_numpy().astype(np.int64)
    weights = None
    if feature.weight_separator is not None:
        weights = columns[WEIGHTS_PREFIX + feature.name].combine_chunks().flatten().to_numpy()
    return Bag(column.flatten().to_numpy(), splits - splits[0], weights)
