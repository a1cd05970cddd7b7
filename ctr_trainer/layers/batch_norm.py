"""Batch normalization for graph mode, whose moving statistics the training operation keeps."""

import dataclasses
from typing import Any

import tensorflow as tf

from ctr_trainer.features import example_weights

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "batch statistics")  # No string, so that TensorFlow does not try to serialize what is under it.


@dataclasses.dataclass(frozen=True)
class BatchStatistic:
    """A moving statistic, and what the batch says of it.

    Attributes:
      variable: float32[n], not trainable: part of checkpoints and of exported graphs.
      value: float32[n], of this batch.
      momentum: the share of the old value that stays.
    """

    variable: Any
    value: Any
    momentum: float

    def update(self, mean, weight):
        """-> operation that moves the statistic, but for a step without examples.

        Args:
          mean: of `value` over the step's batches and workers.
          weight: the examples' weights that it is the mean of.
        """
        return moved(self.variable, mean, self.momentum, weight)


def moved(variable, value, momentum, weight):
    """-> operation: `variable = momentum * variable + (1 - momentum) * value` if `weight` > 0, and else nothing."""
    rate = tf.where(weight > 0, 1.0 - momentum, 0.0)
    return variable.assign_sub(rate * (variable - value), read_value=False)


def keep_statistic(statistic):
    """Adds a `BatchStatistic`, or what has such a `value` and `update`, to those of the current graph."""
    tf1.add_to_collection(_KEY, statistic)


def batch_statistics():
    """-> the `BatchStatistic`s of the current graph's layers that train."""
    return tf1.get_collection(_KEY)


def batch_norm(inputs, training, momentum=0.99, epsilon=1e-3, name="batch_norm"):
    """`gamma * (x - mean) / sqrt(variance + epsilon) + beta`, by column.

    While training, mean and variance are the batch's own, of this worker, weighted by the examples' weights, so that
    padding counts for nothing; otherwise they are the moving ones. These move once an optimizer step, towards the mean
    of all workers' batches weighted by their examples: `estimator.optimize.TrainOp` sends them along with the
    gradients, so they are equal on all ranks. Under local SGD they move on each worker by itself and are averaged with
    the variables.

    Caveat: a `train_op` that is not `TrainOp`'s leaves the moving statistics at 0 and 1.

    Args:
      inputs: float32[B, n].
      training: whether this graph trains.
      momentum: of the moving statistics.
      epsilon: added to the variance.
      name: of the variable scope.

    Returns:
      float32[B, n].

    Source: Ioffe and Szegedy, Batch Normalization, ICML 2015, algorithms 1 and 2.
    """
    width = [inputs.shape[-1]]
    with tf1.variable_scope(name):
        gamma = tf1.get_variable("gamma", width, initializer=tf1.ones_initializer())
        beta = tf1.get_variable("beta", width, initializer=tf1.zeros_initializer())
        moving = [
            tf1.get_variable(statistic, width, initializer=tf1.constant_initializer(start), trainable=False)
            for statistic, start in (("moving_mean", 0.0), ("moving_variance", 1.0))
        ]
    if not training:
        return tf.nn.batch_normalization(inputs, *moving, beta, gamma, epsilon)
    mean, variance = _moments(inputs, example_weights.current())
    for variable, value in zip(moving, (mean, variance), strict=True):
        keep_statistic(BatchStatistic(variable, value, momentum))
    return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)


def _moments(inputs, weights):
    """-> mean and variance by column, float32[n] each; 0 where all weights are 0."""
    if weights is None:
        return tf.nn.moments(inputs, [0])
    share = tf.math.divide_no_nan(weights, tf.reduce_sum(weights))[:, None]
    mean = tf.reduce_sum(share * inputs, 0)
    return mean, tf.reduce_sum(share * tf.math.squared_difference(inputs, tf.stop_gradient(mean)), 0)
