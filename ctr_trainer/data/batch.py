"""Batches of examples as arrays, and the rows from which batches are made."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numba
import numpy as np
import pyarrow as pa

from ctr_trainer.data.blocks import ID_PREFIX, WEIGHT, WEIGHTS_PREFIX, label_columns
from ctr_trainer.features import hashing
from ctr_trainer.features.columns import SparseFeature
from ctr_trainer.features.spec import FeatureSpec

_BLOCK_ROWS = 1024


@dataclasses.dataclass
class Bag:
    """A bag or sequence of a batch: row `b` has the keys `values[splits[b]:splits[b + 1]]`.

    Attributes:
      values: int64[n], the keys of all rows, concatenated.
      splits: int32[B + 1], the position in `values` at which each row begins, then n.
      weights: float32[n], the weight of each value; None if the feature has no weights.
    """

    values: np.ndarray
    splits: np.ndarray
    weights: np.ndarray | None = None


@dataclasses.dataclass
class Batch:
    """`B` examples. The last `B - size` are padding with weight zero, so that all batches have the same shape.

    Attributes:
      size: number of examples that are not padding.
      keys: dict of table name -> int64[B, F], the keys of the table's single-valued features, in the spec's order.
      bags: dict of feature name -> Bag, for bags and sequences; a sequence has at most `max_length` values per row.
      dense: float32[B, n], the converted values before transforms; NaN for a missing value.
      labels: float32[B]; with T > 1 labels float32[B, T], in the spec's order.
      weights: float32[B], zero for padding.
      ids: dict of column name -> array[B], columns that are copied to the predictions and not used for training.

    The key 0 means that there is no value. Its embedding is zero and gets no gradient.
    """

    size: int
    keys: dict[str, np.ndarray]
    bags: dict[str, Bag]
    dense: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    ids: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Rows:
    """`n` examples in arrays like a `Batch`, except that the splits of a bag are int64[n + 1] and may start above 0."""

    keys: dict[str, np.ndarray]
    bags: dict[str, Bag]
    dense: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    ids: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> "Rows":
        """Returns the rows [start, stop), as views."""
        return self._map(lambda a: a[start:stop], lambda b: Bag(b.values, b.splits[start : stop + 1], b.weights))

    def take(self, order: np.ndarray) -> "Rows":
        """Copies the rows at the indices `order`, an int64 array."""
        return self._map(lambda a: np.take(a, order, axis=0), lambda bag: _take_bag(bag, order))

    def batch(self, batch_size: int) -> Batch:
        """Returns these rows as a Batch, padded to `batch_size`. If no padding is needed, its arrays are views."""
        padding = batch_size - len(self)
        rows = self if not padding else self._map(lambda a: _pad(a, padding), lambda bag: _pad_bag(bag, padding))
        bags = {name: _batch_bag(bag) for name, bag in rows.bags.items()}
        return Batch(len(self), rows.keys, bags, rows.dense, rows.labels, rows.weights, rows.ids)

    def _map(self, array: Callable[[np.ndarray], np.ndarray], bag: Callable[[Bag], Bag]) -> "Rows":
        return Rows(
            keys={name: array(a) for name, a in self.keys.items()},
            bags={name: bag(b) for name, b in self.bags.items()},
            dense=array(self.dense),
            labels=array(self.labels),
            weights=array(self.weights),
            ids={name: array(a) for name, a in self.ids.items()},
        )


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Returns the Rows of all parts, in order."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    return Rows(
        keys={name: np.concatenate([p.keys[name] for p in parts]) for name in first.keys},
        bags={name: _concatenate_bags([p.bags[name] for p in parts]) for name in first.bags},
        dense=np.concatenate([p.dense for p in parts]),
        labels=np.concatenate([p.labels for p in parts]),
        weights=np.concatenate([p.weights for p in parts]),
        ids={name: np.concatenate([p.ids[name] for p in parts]) for name in first.ids},
    )


def rows_of(tables: Iterable[pa.Table], total: int, spec: FeatureSpec, buckets: Mapping[str, hashing.Buckets]) -> Rows:
    """Converts encoded tables (see `encode.Encoder`) to Rows, in order.

    Args:
      total: total number of rows.
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
    """Returns the columns that are not part of a matrix: bags, labels, weights and ids."""
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


def batches(pieces: Iterator[Rows], steps: int, batch_size: int) -> Iterator[Batch]:
    """Splits pieces into `steps` Batches, in order. Batches after the last row consist of padding.

    Args:
      pieces: iterator of at least one Rows; it will be exhausted.
      steps: number of batches, enough for all rows.
    """
    piece, at = next(pieces), 0
    for _ in range(steps):
        parts, wanted = [], batch_size
        while True:
            parts.append(piece.slice(at, min(at + wanted, len(piece))))
            at += len(parts[-1])
            wanted -= len(parts[-1])
            if not wanted or (following := next(pieces, None)) is None:
                break
            piece, at = following, 0
        yield concatenate(parts).batch(batch_size)
    for _ in pieces:
        raise AssertionError("rows are left after the last batch")


def _concatenate_bags(bags: Sequence[Bag]) -> Bag:
    lengths = np.concatenate([np.diff(b.splits) for b in bags])
    values = np.concatenate([b.values[b.splits[0] : b.splits[-1]] for b in bags])
    weights = [b.weights[b.splits[0] : b.splits[-1]] for b in bags if b.weights is not None]
    return Bag(values, np.concatenate([[0], np.cumsum(lengths)]), np.concatenate(weights) if weights else None)


def _batch_bag(bag: Bag) -> Bag:
    """Returns the bag without values of other rows, so that its splits begin at 0."""
    kept = slice(bag.splits[0], bag.splits[-1])
    weights = None if bag.weights is None else bag.weights[kept]
    return Bag(bag.values[kept], (bag.splits - bag.splits[0]).astype(np.int32), weights)


def _pad(array: np.ndarray, padding: int) -> np.ndarray:
    fill = np.full((padding, *array.shape[1:]), "" if array.dtype.kind == "O" else 0, array.dtype)
    return np.concatenate([array, fill])


def _pad_bag(bag: Bag, padding: int) -> Bag:
    return Bag(bag.values, np.concatenate([bag.splits, np.full(padding, bag.splits[-1])]), bag.weights)


def _take_bag(bag: Bag, order: np.ndarray) -> Bag:
    splits = np.concatenate([[0], np.cumsum(bag.splits[order + 1] - bag.splits[order])])
    weights = None if bag.weights is None else _take_values(bag.weights, bag.splits, order, splits)
    return Bag(_take_values(bag.values, bag.splits, order, splits), splits, weights)


def _take_values(values: np.ndarray, splits: np.ndarray, order: np.ndarray, taken_splits: np.ndarray) -> np.ndarray:
    """Returns the values of the rows in `order`, row by row; `taken_splits` are the splits of these rows."""
    # NumPy allocates large arrays in huge pages. With an array that the compiled loop allocates, this is twice as slow.
    taken = np.empty(taken_splits[-1], values.dtype)
    _copy_values(values, splits, order, taken_splits, taken)
    return taken


@numba.njit(nogil=True, cache=True)
def _copy_values(
    values: np.ndarray, splits: np.ndarray, order: np.ndarray, taken_splits: np.ndarray, taken: np.ndarray
) -> None:
    for i in range(len(order)):
        # `row_kernels` explains why the integers are unsigned.
        first, start, stop = np.uint64(splits[order[i]]), np.uint64(taken_splits[i]), np.uint64(taken_splits[i + 1])
        for j in range(stop - start):  # Faster than a slice, because a row has few values.
            taken[start + j] = values[first + j]
