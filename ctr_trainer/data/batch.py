"""A batch of examples as the trainer takes it."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Bag:
    """A bag or sequence of a batch: row `b` has the keys `values[splits[b]:splits[b + 1]]`.

    Attributes:
      values: int64[n], the keys of all rows, one row after the other.
      splits: int32[B + 1], the place in `values` at which each row begins, then n.
      weights: float32[n], the weight of each value; None if the feature has no weights.
    """

    values: np.ndarray
    splits: np.ndarray
    weights: np.ndarray | None = None


@dataclasses.dataclass
class Batch:
    """`B` examples. The last `B - size` are padding of weight zero, so that all batches have one shape.

    Attributes:
      size: number of examples that are not padding.
      keys: dict of table name -> int64[B, F], the keys of the table's single-valued features, in the spec's order.
      bags: dict of feature name -> Bag, for bags and sequences; a sequence has at most `max_length` values per row.
      dense: float32[B, n], raw values as converted; NaN for a missing value.
      labels: float32[B]; with T > 1 labels float32[B, T], in the spec's order.
      weights: float32[B], zero for padding.
      ids: dict of column name -> array[B], for columns that are kept for the predictions' output and not trained on.

    The key 0 stands for no value: its embedding is zeros, and it takes no gradient.
    """

    size: int
    keys: dict[str, np.ndarray]
    bags: dict[str, Bag]
    dense: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    ids: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
