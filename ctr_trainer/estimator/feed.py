"""What a graph takes of an input: its tensors, and what feeds them."""

import abc

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


class GraphInput(abc.ABC):
    """The features and labels that a model is built from, and what is known of the data before it is built.

    Args:
      features, labels: what `model_fn` is given.

    Attributes:
      features, labels: the same.
      fed: whether the features are `FedFeatures`, whose values come from outside at each step; else the graph reads
        its input itself.
      weight: scalar tensor, what a batch counts; None if all batches count alike.
      batch_size: examples of a batch, padding included; None if the input does not know, and so for all below.
      batches: how many the input has, from its start on.
      batches_per_epoch: of a whole epoch.
      in_epochs: `run_length.Epochs`.
      epochs: how many the whole run has, with those before its start.
    """

    fed = False
    weight = None
    batch_size = batches = batches_per_epoch = in_epochs = epochs = None

    def __init__(self, features, labels):
        self.features, self.labels = features, labels

    @property
    def uses_embeddings(self):
        """Whether the model asked for any embedding input; known once it was built."""
        return False

    def weights(self, labels):
        """Returns float32[B], what each example counts in the metrics.

        Args:
          labels: float32[B], of the batch.
        """
        return tf.ones_like(labels)

    @abc.abstractmethod
    def connect(self, store, config, spec=None, trained=None, within_training=False, clock=None):
        """Returns the `Feed` of the model that was built, tied to the store. Nothing is read before its `rewind`.

        Args:
          store: of `open_store`.
          config: `RunConfig`.
          spec: the `EstimatorSpec` to train; None to evaluate or predict.
          trained: by table name, the `TableConfig` it was trained with; None to train it as `config` says.
          within_training: whether it is evaluated while another input trains: then rows are read from the store as they
            are at each step.
          clock: `Clock` of the training thread; None where nobody looks at it.

        Raises:
          UserError: the settings do not go with the data.
        """


class DatasetInput(GraphInput):
    """A `tf.data.Dataset` of (features, labels), or a tuple of the two as tensors: read inside the graph.

    It starts anew after a restart.

    Args:
      data: the Dataset or the tensors; without labels, the features alone.
      has_read: f(), called after each batch; None for nothing.
    """

    _hooks = ()

    def __init__(self, data, has_read=None):
        data = read_in_graph(data) if isinstance(data, tf.data.Dataset) else data
        batch = data if isinstance(data, tuple) else (data, None)
        super().__init__(*(_counted(batch, has_read) if has_read else batch))

    def connect(self, store, config, spec=None, trained=None, within_training=False, clock=None):
        return Feed(self, self._hooks)


def read_in_graph(dataset):
    """Returns the tensors of a batch of a `tf.data.Dataset`, which each session reads from the beginning."""
    iterator = tf1.data.make_initializable_iterator(dataset)
    # Run with the tables when a session starts.
    tf1.add_to_collection(tf1.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def _counted(batch, has_read):
    """Returns (features, labels) of a batch, which come after `has_read` was called."""

    def counted():
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
    """Feeds nothing: of a graph that reads its input itself.

    Args:
      inputs: the `GraphInput` that the graph was built from.
      hooks: session hooks that the input needs.

    Attributes:
      inputs: the same.
      hooks: the same. They are others after each `rewind`.
      embeddings: `Embeddings` behind the graph's embedding inputs; None of a graph that is fed nothing.
      latencies: `Latency` of each operation on batches and rows, in whatever thread it is done.
      batch: the `Batch` of the step now running; None of a graph that is fed nothing.
      status_lines: list of f() -> a line for the log.
      is_live: whether the examples come from a stream.
      event_time: f() -> the event time of its newest example as text; None but on rank 0, and where it has none.
      examples: how many were fed since `rewind`.
      steps: how many optimizer steps the input is for, from its start on; None if it does not know.
    """

    embeddings = batch = steps = None
    latencies = status_lines = ()
    is_live = False
    event_time = None
    examples = 0

    def __init__(self, inputs, hooks=()):
        self.inputs, self.hooks = inputs, [*hooks]

    def rewind(self):
        """Feeds from the first batch on; what the graph reads itself begins anew in each session."""

    def flush(self):
        """Returns when the store has all that the steps so far changed."""

    def position_after(self, steps):
        """Returns where the input stands after `steps` more steps of every worker; None if it does not know."""
        return

    def committed(self, position):
        """Takes notice of a checkpoint that is complete, with that position."""

    def epochs_after(self, steps):
        """Returns how many epochs, a float, are done after `steps` more steps; None if the input does not know."""
        return

    def beside(self, predictions):
        """Returns by column the predictions for the examples of `batch`, and the id columns and labels of the data."""
        return predictions

    def close(self):
        """Ends the threads that read ahead and that sync; before the store is closed, which both use."""
