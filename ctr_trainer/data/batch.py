"""A batch of examples as the trainer takes it."""

import dataclasses

import numpy as np


@dataclasses.dataclass
class Bag:
    """A bag or sequence of a batch: row `b` has the keys `values[splits[b]:splits[b + 1]]`.

    Attributes:
      values: int64[n], the keys of all rows, one after the other.
      splits: int32[B + 1].
      weights: float32[n], what each value counts; None where the feature has no weights.
    """

    values: np.ndarray
    splits: np.ndarray
    weights: np.ndarray | None = None


@dataclasses.dataclass
class Batch:
    """`B` examples; the last `B - size` are padding of weight zero, so that every batch has one shape.

    Attributes:
      size: how many of the rows are examples.
      keys: by table name, int64[B, F]: the single-valued features of that table, in the spec's order.
      bags: by feature name, the bags and the sequences; no row of a sequence has more than its `max_length` values.
      dense: float32[B, n], raw values as converted; NaN where the value is missing.
      labels: float32[B]; of a spec with T labels, T above 1, float32[B, T] in the spec's order.
      weights: float32[B], zero for padding.
      ids: by column name, array[B]: columns that are kept for the predictions' output and not trained on.

    The key 0 stands for no value: it looks up zeros and takes no gradient.
    """

    size: int
    keys: dict[str, np.ndarray]
    bags: dict[str, Bag]
    dense: np.ndarray
    labels: np.ndarray
    weights: np.ndarray
    ids: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
