"""Input functions for arrays in memory; the input of a graph, which may be a padded dataset."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.run_length import Epochs
from ctr_trainer.ranks import distributed
from ctr_trainer.system.messages.errors import UserError


def numpy_input_fn(
    x: Any,
    y: Any = None,
    batch_size: int = 128,
    num_epochs: int | None = 1,
    shuffle: bool | None = None,
    queue_capacity: int = 1000,
    num_threads: int = 1,
) -> Callable[[], tf.data.Dataset]:
    """Returns an `input_fn` that reads this rank's share of the examples: every Kth example with K ranks.

    Args:
      x: array, or dict of name -> array; all arrays have the same length.
      y: labels, an array or a dict of arrays; None if there are no labels.
      batch_size: number of examples in each worker's batch.
      num_epochs: number of times to read the examples; None repeats them forever.
      shuffle: whether to shuffle the examples in each epoch.
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
    """Returns an `input_fn` that reads the columns of a DataFrame; see `numpy_input_fn`.

    Args:
      x: `pandas.DataFrame`.
      y: `pandas.Series` or `pandas.DataFrame` of labels; None if there are no labels.
      batch_size, num_epochs, shuffle, queue_capacity, num_threads: see `numpy_input_fn`.
      target_column: not used, because the labels are `y`.
    """
    labels = y if y is None or getattr(y, "ndim", 1) == 1 else _columns(y)
    labels = np.asarray(labels) if labels is not None and not isinstance(labels, Mapping) else labels
    return numpy_input_fn(_columns(x), labels, batch_size, num_epochs, shuffle, queue_capacity, num_threads)


def _columns(frame: Any) -> dict[str, np.ndarray]:
    columns = {name: frame[name].to_numpy() for name in frame}
    return {name: values.astype(str) if values.dtype == object else values for name, values in columns.items()}


class GraphInput:
    """The features and labels from which a model is built, and the properties of the data that are known by then.

    Attributes:
      features, labels: the arguments of `model_fn`.
      fed: whether the features are `FedFeatures`, whose values are fed at each step. Otherwise the graph reads its
        input itself, and a resumed run reads it from the beginning.
      weight: scalar float32, the sum of the weights of a batch's examples.
      batches: number of batches from the input's start to its end. This and the attributes below are None if unknown.
      batches_per_epoch: number of batches in a whole epoch.
      in_epochs: `Epochs` of the input.
      epochs: number of epochs of the whole run, including epochs before this input's start.
      placeholders: the placeholders of embedding rows; () if the graph reads its input itself.
      next_total: scalar tensor, equal on all ranks: the number of ranks that have another batch; see `padded_input`.
    """

    fed = False
    batches: int | None = None
    batches_per_epoch: int | None = None
    in_epochs: Epochs | None = None
    epochs: int | None = None
    placeholders: Sequence[tf.Tensor] = ()
    next_total: tf.Tensor | None = None

    def __init__(self, features: Any, labels: Any) -> None:
        self.features, self.labels = features, labels

    @functools.cached_property
    def weight(self) -> tf.Tensor:
        return tf.cast(_example_count(self.features, self.labels), tf.float32)

    def count_reads(self, has_read: Callable[[], None]) -> None:
        """Makes the graph call `has_read` after it has read a batch, before it uses the features and labels."""

        def counted() -> np.int32:
            has_read()
            return np.int32(0)

        batch = (self.features, self.labels)
        read = [tensor for tensor in tf.nest.flatten(batch, True) if tensor is not None]
        with tf.control_dependencies(read), tf.device("/cpu:0"):
            count = tf.numpy_function(counted, [], tf.int32)
        with tf.control_dependencies([count]):
            self.features, self.labels = (
                tf.nest.map_structure(tf.identity, part, expand_composites=True) if part is not None else None
                for part in batch
            )

    def weights(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns float32[B], the weight of each example in the metrics; `labels` is float32[B]."""
        ones = tf.ones_like(labels)
        return ones if self.next_total is None else ones * tf.minimum(self.weight, 1.0)


def dataset_input(data: Any) -> GraphInput:
    """Returns the input of a graph that reads a `tf.data.Dataset` of (features, labels), or the tensors of both.

    `data` is the Dataset or the tuple of tensors; only the features if there are no labels.
    """
    data = _read_in_graph(data) if isinstance(data, tf.data.Dataset) else data
    batch = data if isinstance(data, tuple) else (data, None)
    if len(batch) != 2 or batch[0] is None:
        raise UserError(
            f"input_fn returned {'None' if data is None else f'a tuple of {len(batch)}'}: expected a "
            "tf.data.Dataset of (features, labels), the tensors of both, or a BatchReader"
        )
    return GraphInput(*batch)


def padded_input(data: Any) -> GraphInput:
    """Returns the input of a rank, followed by zero-weight batches until the inputs of all ranks have ended.

    A zero-weight batch repeats the last batch. In each step, one exchange of a number, which runs concurrently with the
    computation, counts the ranks that have another batch, so that all ranks end after the same step.

    `data` is this rank's `tf.data.Dataset`, read one batch ahead.

    Raises UserError: `data` is not a Dataset.
    """
    if not isinstance(data, tf.data.Dataset):
        raise UserError(
            f"uneven_inputs='pad' is for a tf.data.Dataset, and input_fn returned {type(data).__name__}: use "
            "uneven_inputs='error' (a BatchReader has as many batches on all ranks)"
        )
    batch, (weight, has_next) = _read_in_graph(padded(data))
    inputs = dataset_input(batch)
    inputs.weight = weight  # Replaces the number of examples: 0 for a zero-weight batch.
    with tf.device("/cpu:0"):
        inputs.next_total = distributed.allreduce(has_next, "ranks_with_a_batch")
    return inputs


def padded(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns a Dataset of (element, (weight, has_next)) that repeats the last element of `dataset` forever.

    `weight` is the number of examples in the element, or 0 for a repetition. `has_next` is 1 if another element follows
    that is not a repetition, and 0 otherwise. Both are float32. If `dataset` is empty, the result is empty, too.
    """
    spec = dataset.element_spec
    # The smallest tensors that conform to the spec.
    sizes = [[size or 0 for size in part.shape.as_list()] if part.shape.rank else [] for part in _parts(spec)]
    none = tuple(tf.zeros(size, part.dtype) for size, part in zip(sizes, _parts(spec), strict=True))
    elements = dataset.map(lambda *parts: (_parts(parts if isinstance(spec, tuple) else parts[0]), True))
    endless = elements.concatenate(tf.data.Dataset.from_tensors((none, False)).repeat())

    def step(state: Any, following: Any) -> Any:
        (element, counts, begun), (next_element, next_counts) = state, following
        kept = tf.cond(next_counts, lambda: next_element, lambda: element)
        return (kept, next_counts, True), (element, counts, next_counts, begun)

    def finished(element: Any, counts: tf.Tensor, has_next: tf.Tensor, begun: tf.Tensor) -> Any:
        whole = tf.nest.pack_sequence_as(spec, element, expand_composites=True)
        parts = whole if isinstance(whole, tuple) and len(whole) == 2 else (whole, None)
        weight = tf.where(counts, tf.cast(_example_count(*parts), tf.float32), 0.0)
        return whole, (weight, tf.cast(has_next, tf.float32))

    steps = endless.scan((none, False, False), step)
    return steps.take_while(lambda element, counts, has_next, begun: begun | has_next).skip(1).map(finished)


def _parts(element: Any) -> tuple[tf.Tensor, ...]:
    return tuple(tf.nest.flatten(element, expand_composites=True))


def _read_in_graph(dataset: tf.data.Dataset) -> Any:
    """Returns the tensors of a batch; each session reads the Dataset from the beginning."""
    iterator = tf1.data.make_initializable_iterator(dataset)
    # A session runs these initializers when it starts.
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def _example_count(features: Any, labels: Any) -> tf.Tensor | int:
    """Returns the first dimension of a batch's labels, or of its first feature if there are no labels."""
    tensors = [*tf.nest.flatten(labels), *tf.nest.flatten(features)]
    first = next(tensor for tensor in tensors if tensor is not None)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return tf.shape(first)[0] if first.shape.rank != 0 else 1
