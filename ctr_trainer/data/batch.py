"""Batches of examples as arrays, and the rows from which batches are made."""

import dataclasses
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ctr_trainer.data.blocks import ID_PREFIX, WEIGHT, WEIGHTS_PREFIX, concatenated, label_columns
from ctr_trainer.features import hashing
from ctr_trainer.features.spec import FeatureSpec

_BLOCK_ROWS = 1024
_KEYS, _BAG = "keys:", "bag:"


@dataclasses.dataclass
class Bag:
    """A bag or sequence of a batch: row `b` has the keys `values[splits[b]:splits[b + 1]]`.

    `values` are int64[n], `splits` int32[B + 1], and `weights` float32[n], or None if the feature has no weights.
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


def rows_of(table: pa.Table, spec: FeatureSpec, buckets: Mapping[str, hashing.Buckets]) -> pa.Table:
    """Converts an encoded table (see `encode.Encoder`) to the columns of a `Batch`, see `batch_of`.

    Its columns are `keys:<table>`, `dense`, `labels`, `weights`, `id:<column>`, `bag:<feature>` and
    `weights:<feature>`. A row of a matrix is a fixed-size list. For `buckets`, see `hashing.buckets_of`.
    """
    keys = {f.name: table[f.name].to_numpy() for f in spec.sparse if f.combiner is None}
    keys |= {f.name: buckets[f.name].keys(keys[f.name]) for f in spec.bucketised}
    keys |= {f.name: hashing.cross_keys(f, [keys[part.name] for part in spec.crossed(f)]) for f in spec.cross}
    rows = {f"{_KEYS}{t.name}": _matrix([keys[f.name] for f in t.single], len(table)) for t in spec.tables}
    for feature in (*spec.bags, *spec.sequences):
        rows[f"{_BAG}{feature.name}"] = table[feature.name]
        if feature.weight_separator is not None:
            rows[WEIGHTS_PREFIX + feature.name] = table[WEIGHTS_PREFIX + feature.name]
    labels = [table[name].to_numpy() for name in label_columns(spec)]
    if not labels:  # The data have no labels.
        labels = [np.full(len(table), np.nan, np.float32)] * len(spec.labels)
    return pa.table(
        {
            **rows,
            "dense": _matrix([table[f.name].to_numpy() for f in spec.dense], len(table), np.float32),
            "labels": _matrix(labels, len(table)) if len(labels) > 1 else labels[0],
            "weights": table[WEIGHT] if spec.weight else np.ones(len(table), np.float32),
            **{ID_PREFIX + name: table[ID_PREFIX + name] for name in spec.ids},
        }
    )


def batch_of(rows: pa.Table, batch_size: int) -> Batch:
    """Copies the result of `rows_of` to a Batch of `batch_size` examples."""
    names = rows.column_names
    return Batch(
        size=len(rows),
        keys={n.removeprefix(_KEYS): array_of(rows[n], batch_size) for n in names if n.startswith(_KEYS)},
        bags={n.removeprefix(_BAG): _bag(rows, n.removeprefix(_BAG), batch_size) for n in names if n.startswith(_BAG)},
        dense=array_of(rows["dense"], batch_size),
        labels=array_of(rows["labels"], batch_size),
        weights=array_of(rows["weights"], batch_size),
        ids={n.removeprefix(ID_PREFIX): array_of(rows[n], batch_size) for n in names if n.startswith(ID_PREFIX)},
    )


def array_of(column: pa.ChunkedArray, length: int) -> np.ndarray:
    """Copies a column to an array [length], or [length, F] for fixed-size lists, with 0 or None after its rows.

    Integers of which some are missing are Python's, or None: as float64, an id above 2^53 would be another one.
    """
    values = _whole(column)
    if pa.types.is_fixed_size_list(values.type):
        found = values.flatten().to_numpy().reshape(len(values), values.type.list_size)
    elif values.null_count and pa.types.is_integer(values.type):
        found = np.array(values.to_pylist(), object)
    else:
        found = values.to_numpy(zero_copy_only=False)
    if len(found) == length:
        return found.copy()
    array = np.full((length, *found.shape[1:]), None if found.dtype.kind == "O" else 0, found.dtype)
    array[: len(found)] = found
    return array


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Returns the column as one array, without a copy if it is one."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _bag(rows: pa.Table, name: str, batch_size: int) -> Bag:
    lists, weights = _whole(rows[f"{_BAG}{name}"]), None
    splits = lists.offsets.to_numpy() - lists.offsets[0].as_py()
    if WEIGHTS_PREFIX + name in rows.column_names:
        weights = _whole(rows[WEIGHTS_PREFIX + name]).flatten().to_numpy().copy()
    padding = np.full(batch_size - len(lists), splits[-1])
    return Bag(lists.flatten().to_numpy().copy(), np.concatenate([splits, padding]).astype(np.int32), weights)


def _matrix(columns: list[np.ndarray], rows: int, dtype: npt.DTypeLike = np.int64) -> pa.Array:
    """Returns fixed-size lists of the values of each row, copied in blocks of rows that fit into the cache."""
    matrix = np.empty((rows, len(columns)), columns[0].dtype if columns else dtype)
    for start in range(0, rows, _BLOCK_ROWS):
        stop = start + _BLOCK_ROWS
        for at, column in enumerate(columns):
            matrix[start:stop, at] = column[start:stop]
    if not columns:
        return pa.nulls(rows, pa.list_(pa.from_numpy_dtype(matrix.dtype), 0))
    return pa.FixedSizeListArray.from_arrays(pa.array(matrix.ravel()), len(columns))


def batches(pieces: Iterator[pa.Table], steps: int, batch_size: int, name: str = "") -> Iterator[Batch]:
    """Splits at least one result of `rows_of` into `steps` Batches, in order; the last ones may be padding.

    `name` is that of the data set, for messages.
    """
    piece, at = next(pieces), 0
    for _ in range(steps):
        parts, wanted = [], batch_size
        while True:
            parts.append(piece.slice(at, wanted))
            at += len(parts[-1])
            wanted -= len(parts[-1])
            if not wanted or (following := next(pieces, None)) is None:
                break
            piece, at = following, 0
        whole = parts[0] if len(parts) == 1 else concatenated(parts, name)
        yield batch_of(whole, batch_size)
    for _ in pieces:
        raise AssertionError("rows are left after the last batch")
