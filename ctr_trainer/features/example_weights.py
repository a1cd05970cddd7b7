"""The weights of a graph's examples, for layers that compute over the whole batch and must leave padding out."""

import tensorflow as tf

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "example weights")  # No string, so that TensorFlow does not try to serialize what is under it.


def record(weights):
    """Keeps the weights, float32[B], of the current graph's examples."""
    tf1.add_to_collection(_KEY, weights)


def current():
    """-> the weights, float32[B], of the current graph's examples; None if none were recorded."""
    weights = tf1.get_collection(_KEY)
    return weights[-1] if weights else None
