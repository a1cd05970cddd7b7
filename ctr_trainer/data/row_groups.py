"""Converts the encoded tables of row groups to arrays."""

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from ctr_trainer.data.batch import Bag, Rows, concatenate
from ctr_trainer.data.blocks import ID_PREFIX, WEIGHT, WEIGHTS_PREFIX, label_columns
from ctr_trainer.features import hashing
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.spec import FeatureSpec

_BLOCK_ROWS = 1024


def rows_of(tables: Iterable[pa.Table], total: int, spec: FeatureSpec, buckets: Mapping[str, hashing.Buckets]) -> Rows:
    """Returns the Rows of encoded tables (see `encode.Encoder`), in order.

    Args:
      total: total number of their rows.
      spec: FeatureSpec of the tables; its dims may differ.
      buckets: see `hashing.buckets_of`.
    """
    keys = {t.name: np.empty((total, len(t.single)), np.int64) for t in spec.tables}
    dense = np.empty((total, len(spec.dense)), np.float32)
    rest, start = [], 0
    for columns in tables:
        part = slice(start, start := start + len(columns))
        for table in spec.tables:
            _fill(keys[table.name][part], [_keys(columns, f, buckets) for f in table.single])
        _fill(dense[part], [columns[f.name].to_numpy() for f in spec.dense])
        rest.append(_rest(spec, columns))
    rows = concatenate(rest)
    return Rows(keys, rows.bags, dense, rows.labels, rows.weights, rows.ids)


def _keys(columns: pa.Table, feature: SparseFeature, buckets: Mapping[str, hashing.Buckets]) -> np.ndarray:
    values = columns[feature.name].to_numpy()
    return buckets[feature.name].keys(values) if feature.is_bucketised else values


def _fill(matrix: np.ndarray, columns: list[np.ndarray]) -> None:
    """Copies columns into a matrix, in blocks of rows that fit into the cache."""
    for start in range(0, len(matrix), _BLOCK_ROWS):
        stop = start + _BLOCK_ROWS
        for at, column in enumerate(columns):
            matrix[start:stop, at] = column[start:stop]


def _rest(spec: FeatureSpec, columns: pa.Table) -> Rows:
    """Returns the columns that are not part of a matrix: bags, labels, weights, ids."""
    return Rows(
        keys={},
        bags={f.name: _bag(columns, f) for f in (*spec.bags, *spec.sequences)},
        dense=np.empty((len(columns), 0), np.float32),
        labels=_labels(spec, columns),
        weights=columns[WEIGHT].to_numpy() if spec.weight else np.ones(len(columns), np.float32),
        ids={name: columns[ID_PREFIX + name].to_numpy() for name in spec.ids},
    )


def _labels(spec: FeatureSpec, columns: pa.Table) -> np.ndarray:
    """Returns float32[n], or with T labels float32[n, T]; NaN if the data have no labels."""
    if not spec.labelled:
        return np.full((len(columns), len(spec.labels)) if spec.other_labels else len(columns), np.nan, np.float32)
    labels = [columns[name].to_numpy() for name in label_columns(spec)]
    return labels[0] if len(labels) == 1 else np.stack(labels, 1)


def _bag(columns: pa.Table, feature: SparseFeature) -> Bag:
    column = columns[feature.name].combine_chunks()
    splits = column.offsets.to_numpy().astype(np.int64)
    weights = None
    if feature.weight_separator is not None:
        weights = columns[WEIGHTS_PREFIX + feature.name].combine_chunks().flatten().to_numpy()
    return Bag(column.flatten().to_numpy(), splits - splits[0], weights)
