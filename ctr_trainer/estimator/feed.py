"""The input of a graph: its tensors, and the objects that feed values to them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.estimator.embeddings import Embeddings, TableLookup
from ctr_trainer.estimator.run_length import Epochs
from ctr_trainer.system.measuring.latency import Latency
from ctr_trainer.system.messages.errors import UserError


class GraphInput:
    """The features and labels from which a model is built, and the properties of the data that are known by then.

    Attributes:
      features, labels: the arguments of `model_fn`.
      fed: whether the features are `FedFeatures`, whose values are fed at each step. Otherwise the graph reads its
        input itself.
      weight: scalar tensor, the sum of the weights of a batch's examples.
      batch_size: examples per batch, padding included. This and the attributes below are None if unknown.
      batches: number of batches from the input's start to its end.
      batches_per_epoch: number of batches in a whole epoch.
      in_epochs: `Epochs` of the input.
      epochs: number of epochs of the whole run, including epochs before this input's start.
      placeholders: the placeholders of embedding rows; () if the graph reads its input itself.
      next_total: scalar tensor, equal on all ranks: the number of ranks that have another batch.
    """

    fed = False
    weight: Any
    batch_size: int | None = None
    batches: int | None = None
    batches_per_epoch: int | None = None
    in_epochs: Epochs | None = None
    epochs: int | None = None
    placeholders: Sequence[tf.Tensor] = ()
    next_total: tf.Tensor | None = None

    def __init__(self, features: Any, labels: Any) -> None:
        self.features, self.labels = features, labels

    @property
    def uses_embeddings(self) -> bool:
        """Whether the model uses any embedding input. It is known only after the model was built."""
        return False

    def weights(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns float32[B], the weight of each example in the metrics; `labels` is float32[B]."""
        return tf.ones_like(labels)


class DatasetInput(GraphInput):
    """A `tf.data.Dataset` of (features, labels), or the tensors of both, which the graph reads itself.

    A resumed run reads the data from the beginning.

    Args:
      data: the Dataset or the tuple of tensors; only the features if there are no labels.
      has_read: callback f(), called after each batch is read, or None.
    """

    def __init__(self, data: Any, has_read: Callable[[], None] | None = None) -> None:
        data = read_in_graph(data) if isinstance(data, tf.data.Dataset) else data
        batch = data if isinstance(data, tuple) else (data, None)
        if len(batch) != 2 or batch[0] is None:
            raise UserError(
                f"input_fn returned {'None' if data is None else f'a tuple of {len(batch)}'}: expected a "
                "tf.data.Dataset of (features, labels), the tensors of both, or a BatchReader"
            )
        super().__init__(*(_counted(batch, has_read) if has_read else batch))

    @functools.cached_property
    def weight(self) -> tf.Tensor:
        return tf.cast(example_count(self.features, self.labels), tf.float32)


def read_in_graph(dataset: tf.data.Dataset) -> Any:
    """Returns the tensors of a batch; each session reads the Dataset from the beginning."""
    iterator = tf1.data.make_initializable_iterator(dataset)
    # A session runs these initializers when it starts.
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def example_count(features: Any, labels: Any) -> tf.Tensor | int:
    """Returns the first dimension of a batch's labels, or of its first feature if there are no labels."""
    tensors = [*tf.nest.flatten(labels), *tf.nest.flatten(features)]
    first = next(tensor for tensor in tensors if tensor is not None)
    if isinstance(first, tf.SparseTensor):
        return first.dense_shape[0]
    if isinstance(first, tf.RaggedTensor):
        return first.nrows()
    return tf.shape(first)[0] if first.shape.rank != 0 else 1


def _counted(batch: tuple[Any, Any], has_read: Callable[[], None]) -> list[Any]:
    """Returns the features and labels of a batch. They become available after the graph has called `has_read`."""

    def counted() -> np.int32:
        has_read()
        return np.int32(0)

    read = [tensor for tensor in tf.nest.flatten(batch, True) if tensor is not None]
    with tf.control_dependencies(read), tf.device("/cpu:0"):
        count = tf.numpy_function(counted, [], tf.int32)
    with tf.control_dependencies([count]):
        return [
            tf.nest.map_structure(tf.identity, part, expand_composites=True) if part is not None else None
            for part in batch
        ]


@dataclasses.dataclass(frozen=True)
class Fed:
    """A batch that is ready for a run of the graph.

    Attributes:
      feed: the feed_dict of the run; {} if the graph reads its input itself.
      batch: the batch; None if the graph reads it.
      tables: the lookups of the batch's rows.
    """

    feed: dict[tf.Tensor, np.ndarray] = dataclasses.field(default_factory=dict)
    batch: Batch | None = None
    tables: Sequence[TableLookup] = ()


class Feed:
    """Feeds a graph. This base class feeds nothing; it serves graphs that read their input themselves.

    Args:
      inputs: the input from which the graph was built.
      trains: whether the graph is trained; otherwise it is evaluated or predicts.

    Attributes:
      inputs: see above.
      fetches, last_fetches: the tensors that each run of a step fetches for `add` or, in the last run, for `train`.
      embeddings: looks up the graph's embedding inputs; None if the graph is fed nothing.
      new_keys: the shares of keys that were never trained.
      latencies: the latency of each operation on batches and rows, in all threads.
      steps: number of optimizer steps from the input's start to its end; None if it is unknown.
      examples: the number of examples that were fed since `rewind`, or that the graph has read.
      has_ended: whether no rank has another batch, as far as known. Otherwise `next` or the run raises at the end.
      is_live: whether the examples come from a stream.
      stream_state: f() -> progress in the stream, see `GivenReader`; None without a stream and on ranks other than 0.
      status_lines: functions f() -> a line for the log.
    """

    embeddings: Embeddings | None = None
    latencies: Sequence[Latency] = ()
    steps: int | None = None
    is_live = False
    stream_state: Callable[[], dict[str, float]] | None = None
    status_lines: Sequence[Callable[[], str]] = ()

    def __init__(self, inputs: GraphInput, trains: bool) -> None:
        self.inputs, self.new_keys = inputs, NewKeys()
        self.fetches: list[tf.Tensor] = [inputs.weight] if trains else []
        self.fetches += [inputs.next_total] if trains and inputs.next_total is not None else []
        self.last_fetches = self.fetches
        self.examples, self.has_ended = 0, False

    @property
    def event_seconds(self) -> Callable[[], float] | None:
        """f() -> the newest event time in seconds since 1970; None if unknown, and on ranks other than 0."""
        state = self.stream_state
        return None if state is None else lambda: state()["event_seconds"]

    def rewind(self) -> None:
        """Restarts at the first batch. An input that the graph reads itself restarts in each session."""

    def next(self) -> Fed:
        """Reads the next batch and looks up its rows. Raises StopIteration at the end of the input."""
        return Fed()

    def add(self, fed: Fed, fetched: list[np.ndarray]) -> None:
        """Keeps the row gradients of a micro-batch; `fetched` are the values of `fetches`."""
        self.train(fed, fetched)

    def train(self, fed: Fed, fetched: list[np.ndarray]) -> None:
        """Trains the rows of the step that the batch `fed` completes; `fetched` are the values of `last_fetches`."""
        self.examples += int(fetched[0])
        self.has_ended = len(fetched) > 1 and fetched[1] == 0

    def flush(self) -> None:
        """Returns when the store has every change made by the steps so far."""

    def position_after(self, steps: int) -> dict[str, Any] | None:
        """Returns the position of the input after `steps` more steps of every worker; None if it is unknown."""
        return None

    def committed(self, position: dict[str, Any] | None) -> None:
        """Notifies the input that a checkpoint with this position is complete."""

    def epochs_after(self, steps: int) -> float | None:
        """Returns the number of epochs completed after `steps` more steps; None if it is unknown."""
        return None

    def with_columns(self, fed: Fed, predictions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the predictions for the examples of a batch, with the id columns and the labels of the data."""
        return predictions

    def close(self) -> None:
        """Stops the threads that read ahead and sync. They use the store, so call this before closing the store."""
