"""What a graph takes of an input."""

import abc

import tensorflow as tf


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
        """-> float32[B], what each example counts in the metrics.

        Args:
          labels: float32[B], of the batch.
        """
        return tf.ones_like(labels)

    @abc.abstractmethod
    def connect(self, store, config, spec=None, trained=None, within_training=False, clock=None):
        """-> the `Feed` of the model that was built, tied to the store. Nothing is read before its `rewind`.

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
