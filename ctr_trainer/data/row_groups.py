"""Reads row groups of a source as arrays, and pieces of an epoch's order from them."""

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from ctr_trainer.data import row_order
from ctr_trainer.data.batch import Bag, Rows, concatenate
from ctr_trainer.data.blocks import ID_PREFIX, WEIGHT, WEIGHTS_PREFIX, label_columns
from ctr_trainer.data.row_order import EpochOrder, Share
from ctr_trainer.data.source import Source
from ctr_trainer.features import hashing
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.spec import FeatureSpec

_BLOCK_ROWS = 1024


class RowGroups:
    """Reads row groups of a source as arrays. It is not thread-safe.

    Args:
      source: Source.
      spec: FeatureSpec of the source; its dims may differ.
      statistics: statistics of the training data, with the boundaries of quantiles.

    Raises:
      UserError: a feature with quantiles has no boundaries.
    """

    def __init__(self, source: Source, spec: FeatureSpec, statistics: dict[str, dict]) -> None:
        self._source, self._spec = source, spec
        self._buckets = hashing.buckets_of(spec, statistics)
        self.rows = source.group_rows

    def read(self, groups: Sequence[int]) -> Rows:
        """Returns the Rows of the groups, in the given order.

        Raises:
          UserError: a file was removed or changed.
        """
        tables = (self._source.read(group) for group in groups)
        return rows_of(tables, sum(self.rows[group] for group in groups), self._spec, self._buckets)

    def reopened(self) -> "RowGroups":
        """Returns a reader of the same groups with its own open files, for another thread."""
        other = copy.copy(self)
        other._source = self._source.reopened()
        return other

    def close(self) -> None:
        """Closes the files."""
        self._source.close()


def rows_of(tables: Iterable[pa.Table], total: int, spec: FeatureSpec, buckets: Mapping[str, hashing.Buckets]) -> Rows:
    """Returns the Rows of encoded tables, in order.

    Args:
      tables: encoded tables, see `encode.Encoder`.
      total: total number of their rows.
      spec: FeatureSpec of the tables.
      buckets: the Buckets of each bucketised feature, see `hashing.buckets_of`.
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


@dataclasses.dataclass(frozen=True)
class Place:
    """Rows [start, stop) of a buffer in the order of an epoch; start and stop count from the buffer's beginning."""

    epoch: int
    buffer: row_order.Buffer
    start: int
    stop: int


def places(order: EpochOrder, epoch: int, share: Share) -> Iterator[Place]:
    """Yields the Places of a worker's share of an epoch, in order. An empty share has one empty Place.

    Args:
      order: EpochOrder.
      epoch: number of the epoch.
      share: list of ranges [start, stop) of the epoch's order.
    """
    if not share:  # All batches of this worker are padding; the empty Place determines their shapes.
        yield Place(epoch, row_order.Buffer(0, 0, 0, groups=(0,)), 0, 0)
    for buffer, start, stop in order.pieces(epoch, share):
        yield Place(epoch, buffer, start, stop)


class PieceReader:
    """Reads the rows of Places. It is not thread-safe.

    Args:
      groups: RowGroups for this object only; `close` closes them.
      order: EpochOrder of all rows.
    """

    def __init__(self, groups: RowGroups, order: EpochOrder) -> None:
        self._groups, self._order = groups, order

    def __call__(self, place: Place | None) -> Rows | None:
        """Returns the Rows of a Place; None for None, which marks the end of an epoch.

        Raises:
          UserError: a file was removed or changed.
        """
        if place is None:
            return None
        rows = self._groups.read(place.buffer.groups)
        order = self._order.permutation(place.epoch, place.buffer)
        start, stop = place.start, place.stop
        return rows.slice(start, stop) if order is None else rows.take(order[start:stop])

    def close(self) -> None:
        """Closes the files."""
        self._groups.close()
