"""Batches of examples as arrays, and the rows from which batches are made."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

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
    """`n` examples in arrays like a `Batch`, except that the bags are list<int64> and list<float32> in Arrow.

    The weights of a bag's values are in `bags` under the name of the bag after `WEIGHTS_PREFIX`.
    """

    keys: dict[str, np.ndarray]
    bags: dict[str, pa.Array]
    dense: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    ids: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.labels)

    def slice(self, start: int, stop: int) -> "Rows":
        """Returns the rows [start, stop), as views."""
        return self._map(lambda a: a[start:stop], lambda bag: bag.slice(start, stop - start))

    def take(self, order: np.ndarray) -> "Rows":
        """Copies the rows at the indices `order`, an int64 array."""
        places = pa.array(order)
        return self._map(lambda a: np.take(a, order, axis=0), lambda bag: bag.take(places))

    def batch(self, batch_size: int) -> Batch:
        """Returns these rows as a Batch, padded to `batch_size`. If no padding is needed, its arrays are views."""
        padding = batch_size - len(self)
        rows = self if not padding else self._map(lambda a: _pad(a, padding), lambda bag: _pad_bag(bag, padding))
        bags = {
            name: _bag(bag, rows.bags.get(WEIGHTS_PREFIX + name))
            for name, bag in rows.bags.items()
            if not name.startswith(WEIGHTS_PREFIX)
        }
        return Batch(len(self), rows.keys, bags, rows.dense, rows.labels, rows.weights, rows.ids)

    def _map(self, array: Callable[[np.ndarray], np.ndarray], bag: Callable[[pa.Array], pa.Array]) -> "Rows":
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
        bags={name: pa.concat_arrays([p.bags[name] for p in parts]) for name in first.bags},
        dense=np.concatenate([p.dense for p in parts]),
        labels=np.concatenate([p.labels for p in parts]),
        weights=np.concatenate([p.weights for p in parts]),
        ids={name: np.concatenate([p.ids[name] for p in parts]) for name in first.ids},
    )


def rows_of(table: pa.Table, spec: FeatureSpec, buckets: Mapping[str, hashing.Buckets]) -> Rows:
    """Converts an encoded table (see `encode.Encoder`) to Rows; see `hashing.buckets_of` for `buckets`."""
    lists = [name for f in (*spec.bags, *spec.sequences) for name in (f.name, WEIGHTS_PREFIX + f.name)]
    return Rows(
        keys={t.name: _matrix([_keys(table, f, buckets) for f in t.single], len(table), np.int64) for t in spec.tables},
        bags={name: table[name].combine_chunks() for name in lists if name in table.column_names},
        dense=_matrix([table[f.name].to_numpy() for f in spec.dense], len(table), np.float32),
        labels=_labels(spec, table),
        weights=table[WEIGHT].to_numpy() if spec.weight else np.ones(len(table), np.float32),
        ids={name: table[ID_PREFIX + name].to_numpy() for name in spec.ids},
    )


def _keys(table: pa.Table, feature: SparseFeature, buckets: Mapping[str, hashing.Buckets]) -> np.ndarray:
    values = table[feature.name].to_numpy()
    return buckets[feature.name].keys(values) if feature.is_bucketised else values


def _matrix(columns: list[np.ndarray], rows: int, dtype: type) -> np.ndarray:
    """Returns [rows, columns], copied in blocks of rows that fit into the cache."""
    matrix: np.ndarray = np.empty((rows, len(columns)), dtype)
    for start in range(0, rows, _BLOCK_ROWS):
        stop = start + _BLOCK_ROWS
        for at, column in enumerate(columns):
            matrix[start:stop, at] = column[start:stop]
    return matrix


def _labels(spec: FeatureSpec, table: pa.Table) -> np.ndarray:
    """Returns float32[n], or with T labels float32[n, T]; NaN if the data have no labels."""
    if not spec.labelled:
        return np.full((len(table), len(spec.labels)) if spec.other_labels else len(table), np.nan, np.float32)
    labels = [table[name].to_numpy() for name in label_columns(spec)]
    return labels[0] if len(labels) == 1 else np.stack(labels, 1)


def _bag(lists: pa.ListArray, weights: pa.ListArray | None) -> Bag:
    splits = lists.offsets.to_numpy()
    return Bag(
        values=lists.flatten().to_numpy(),
        splits=splits - splits[0],
        weights=None if weights is None else weights.flatten().to_numpy(),
    )


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


def _pad(array: np.ndarray, padding: int) -> np.ndarray:
    fill = np.full((padding, *array.shape[1:]), "" if array.dtype.kind == "O" else 0, array.dtype)
    return np.concatenate([array, fill])


def _pad_bag(lists: pa.ListArray, padding: int) -> pa.ListArray:
    return pa.concat_arrays([lists, pa.array([[]] * padding, lists.type)])
