"""An `input_fn` of arrays in memory, by the names of `tf.estimator.inputs`."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from ctr_trainer.ranks import distributed


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], tf.data.Dataset]:
    """Returns an `input_fn` of this rank's share of the examples: with K ranks, every Kth example.

    Args:
      x: array, or dict of name -> array; all arrays have the same length.
      y: labels, an array or a dict of arrays; None for none.
      batch_size: examples of each worker's batch.
      num_epochs: number of times the examples are read; None for no end.
      shuffle: whether the order changes with each epoch.
      queue_capacity: size of the shuffle buffer, in examples.
      num_threads: not used.
    """

    def input_fn() -> tf.data.Dataset:
        data = tf.data.Dataset.from_tensor_slices((x, y) if y is not None else x)
        data = data.shard(distributed.size(), distributed.rank())
        if shuffle:
            data = data.shuffle(queue_capacity)
        return data.repeat(num_epochs).batch(batch_size)

    return input_fn


def pandas_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
    target_column: str = "target",
) -> Callable[[], tf.data.Dataset]:
    """Returns an `input_fn` of the columns of a DataFrame; see `numpy_input_fn`.

    Args:
      x: `pandas.DataFrame`.
      y: `pandas.Series` or `pandas.DataFrame` of labels; None for none.
      batch_size, num_epochs, shuffle, queue_capacity, num_threads: see `numpy_input_fn`.
      target_column: not used: labels are `y`.
    """
    labels = y if y is None or getattr(y, "ndim", 1) == 1 else _columns(y)
    labels = np.asarray(labels) if labels is not None and not isinstance(labels, Mapping) else labels
    return numpy_input_fn(_columns(x), labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads)


def _columns(frame: Any) -> dict[str, np.ndarray]:
    columns = {name: frame[name].to_numpy() for name in frame}
    return {name: values.astype(str) if values.dtype == object else values for name, values in columns.items()}
