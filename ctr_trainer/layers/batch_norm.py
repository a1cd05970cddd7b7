"""Batch normalization for graph mode, whose moving statistics the training operation keeps."""

import tensorflow as tf

from ctr_trainer.features import tensors
from ctr_trainer.layers.moving_moments import MovingMoments

tf1 = tf.compat.v1


def batch_norm(
    inputs: tf.Tensor, training: bool, momentum: float = 0.99, epsilon: float = 1e-3, name: str = "batch_norm"
) -> tf.Tensor:
    """Normalises each column: `gamma * (x - mean) / sqrt(variance + epsilon) + beta`.

    While training, mean and variance are computed over this worker's batch, weighted by the examples' weights, so that
    padding counts for nothing. Otherwise they are moving statistics, corrected for their start (see `MovingMoments`),
    so that an evaluation after few steps is right too. The moving statistics move once per optimizer step, towards the
    mean of all workers' batches weighted by their examples. `estimator.optimize.TrainOp` sends them along with the
    gradients, so they are equal on all ranks. Under local SGD each worker moves its own, and they are averaged together
    with the variables.

    The moving variance estimates the variance of the population; the variance of a batch is smaller. So each batch
    contributes the unbiased estimate. With s_i = w_i / sum_j w_j for the weights w_i of its examples, this is

        sum_i s_i (x_i - mean)^2 / (1 - sum_i s_i^2),   and sum_i (x_i - mean)^2 / (B - 1) for equal weights.

    Caveat: with a `train_op` that is not made by `TrainOp`, mean and variance stay 0 and 1. A checkpoint from before
    this correction has `moving_mean` and `moving_variance`; it is refused since it lacks `moments` and `weight`.

    Args:
      inputs: x, float32[B, n].
      training: whether this graph trains.
      momentum: the fraction of the moving statistics that an optimizer step keeps.
      epsilon: added to the variance.
      name: of the variable scope.

    Returns:
      float32[B, n].

    Advice: give it batches of a few hundred examples; with small ones the statistics are noise, and `layer_norm` is
    the better choice.

    Example:
      >>> batch_norm(tf.ones([4, 8]), training=True).shape
      TensorShape([4, 8])

    Source: Ioffe and Szegedy, Batch Normalization, ICML 2015, algorithms 1 and 2.
    """
    width = [inputs.shape.as_list()[-1]]
    with tf1.variable_scope(name):
        gamma = tf1.get_variable("gamma", width, initializer=tf1.ones_initializer())
        beta = tf1.get_variable("beta", width, initializer=tf1.zeros_initializer())
        moving = MovingMoments.make(inputs.shape.as_list()[-1])
    if not training:
        return tf.nn.batch_normalization(inputs, *moving.mean_and_variance(), beta, gamma, epsilon)
    mean, variance, unbiased = _moments(inputs, tensors.current_weights())
    moving.keep(mean, unbiased * variance, tf.ones([]), momentum)
    return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)


def _moments(inputs: tf.Tensor, weights: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (mean, variance, the factor that makes the variance unbiased); 0 if all weights are 0."""
    if weights is None:
        size = tf.cast(tf.shape(inputs)[0], tf.float32)
        return *tf.nn.moments(inputs, [0]), tf.math.divide_no_nan(size, size - 1.0)
    share = tf.math.divide_no_nan(weights, tf.reduce_sum(weights))
    unbiased = tf.math.divide_no_nan(1.0, 1.0 - tf.reduce_sum(tf.square(share)))
    share = share[:, None]
    mean = tf.reduce_sum(share * inputs, 0)
    return mean, tf.reduce_sum(share * tf.math.squared_difference(inputs, tf.stop_gradient(mean)), 0), unbiased
