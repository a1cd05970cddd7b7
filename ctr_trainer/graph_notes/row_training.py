"""How a graph trains the embedding rows that its features are made of."""

import dataclasses
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "row training")  # No string, so that TensorFlow does not try to serialize what is under it.


@dataclasses.dataclass(frozen=True)
class RowTraining:
    """The tensors that a session fetches to train the rows of a batch, see `row_step.weighed`.

    Attributes:
      gradients: dict of placeholder name -> the gradient of this worker's loss by the rows that are fed there.
      learning_rate: scalar tensor.
      learning_rate_scale: float, the factor by which the workers make learning rates grow; None for their number.
      share: scalar tensor, a batch's share of all examples of the step over the sum of the batch's weights; None if the
        batch is the whole step.
    """

    gradients: dict
    learning_rate: Any
    learning_rate_scale: float | None = None
    share: Any = None

    @classmethod
    def of_loss(cls, features, loss, learning_rate):
        """Makes a RowTraining of the gradients of a loss.

        Args:
          features: `FedFeatures`, after the model was built.
          loss: scalar tensor.
          learning_rate: a number or a scalar tensor.

        Returns:
          RowTraining.
        """
        rows = features.placeholders
        gradients = tf.gradients(loss, rows) if rows else []
        by_name = {row.name: g for row, g in zip(rows, gradients, strict=True) if g is not None}
        return cls(by_name, tf.convert_to_tensor(learning_rate))


def record(training):
    """Keeps the `RowTraining` of the current graph."""
    tf1.get_default_graph().clear_collection(_KEY)
    tf1.add_to_collection(_KEY, training)


def current():
    """-> the `RowTraining` of the current graph; None if nothing was recorded."""
    recorded = tf1.get_collection(_KEY)
    return recorded[0] if recorded else None
