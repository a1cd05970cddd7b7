"""The input of a graph: its tensors, and the objects that feed values to them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.estimator.embeddings import Embeddings
from ctr_trainer.graph_notes.estimator_spec import EstimatorSpec
from ctr_trainer.graph_notes.run_length import Epochs
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.measuring.clock import Clock
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
    """

    fed = False
    weight: Any
    batch_size: int | None = None
    batches: int | None = None
    batches_per_epoch: int | None = None
    in_epochs: Epochs | None = None
    epochs: int | None = None
    _hooks: Sequence[tf1.train.SessionRunHook] = ()

    def __init__(self, features: Any, labels: Any) -> None:
        self.features, self.labels = features, labels

    @property
    def uses_embeddings(self) -> bool:
        """Whether the model uses any embedding input. It is known only after the model was built."""
        return False

    def weights(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns float32[B], the weight of each example in the metrics; `labels` is float32[B]."""
        return tf.ones_like(labels)

    def connect(
        self,
        store: Store,
        config: RunConfig,
        spec: EstimatorSpec | None = None,
        trained: Mapping[str, TableConfig] | None = None,
        within_training: bool = False,
        clock: Clock | None = None,
    ) -> Feed:
        """Returns the `Feed` of the model that was built. The feed reads nothing before its `rewind` is called.

        Args:
          store: the store of the embedding rows; see `open_store`.
          spec: the model to train; None to evaluate or predict.
          trained: dict of table name -> the `TableConfig` with which the table was trained; None to train the tables
            according to `config`.
          within_training: whether this input is evaluated while another input trains. If so, each step reads the rows
            from the store.
          clock: `Clock` of the training thread; None if it is not needed.

        Raises:
          UserError: the settings do not fit the data.
        """
        return Feed(self, self._hooks, ExampleCounter(self.weight) if spec else None)


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


class ExampleCounter(tf1.train.SessionRunHook):
    """Counts the examples of the batches that the graph reads; `weight` is the number of examples in a batch."""

    def __init__(self, weight: tf.Tensor) -> None:
        self._arguments, self.examples = tf1.train.SessionRunArgs(weight), 0

    def before_run(self, run_context: tf1.train.SessionRunContext) -> tf1.train.SessionRunArgs:
        return self._arguments

    def after_run(self, run_context: tf1.train.SessionRunContext, run_values: tf1.train.SessionRunValues) -> None:
        self.examples += int(run_values.results)


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


class Feed:
    """Feeds a graph. This base class feeds nothing; it serves graphs that read their input themselves.

    Attributes:
      inputs: the input from which the graph was built.
      hooks: session hooks that the input needs.
      embeddings: looks up the graph's embedding inputs; None if the graph is fed nothing.
      new_keys: the shares of keys that were never trained.
      latencies: the latency of each operation on batches and rows, in all threads.
      steps: number of optimizer steps from the input's start to its end; None if it is unknown.
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

    def __init__(
        self,
        inputs: GraphInput,
        hooks: Sequence[tf1.train.SessionRunHook] = (),
        counter: ExampleCounter | None = None,
    ) -> None:
        self.inputs, self.hooks, self._counter = inputs, [*hooks, *([counter] if counter else ())], counter
        self.new_keys = NewKeys()

    @property
    def batch(self) -> Batch | None:
        """The batch of the current step; None if the graph is fed nothing."""
        return None

    @property
    def examples(self) -> int:
        """The number of examples that were fed since `rewind`, or that the graph has read."""
        return self._counter.examples if self._counter else 0

    @property
    def event_seconds(self) -> Callable[[], float] | None:
        """f() -> the newest event time in seconds since 1970; None if unknown, and on ranks other than 0."""
        state = self.stream_state
        return None if state is None else lambda: state()["event_seconds"]

    def rewind(self) -> None:
        """Restarts at the first batch. An input that the graph reads itself restarts in each session."""

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

    def with_columns(self, predictions: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the predictions for the examples of `batch`, with the id columns and the labels of the data."""
        return predictions

    def close(self) -> None:
        """Stops the threads that read ahead and sync. They use the store, so call this before closing the store."""
