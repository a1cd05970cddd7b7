"""Batch normalization for graph mode, whose moving statistics the training operation keeps."""

import tensorflow as tf

from ctr_trainer.features import example_weights
from ctr_trainer.layers.moving_moments import MovingMoments

tf1 = tf.compat.v1


def batch_norm(inputs, training, momentum=0.99, epsilon=1e-3, name="batch_norm"):
    """`gamma * (x - mean) / sqrt(variance + epsilon) + beta`, by column.

    While training, mean and variance are the batch's own, of this worker, weighted by the examples' weights, so that
    padding counts for nothing; otherwise they are the moving ones, corrected for their start (see `MovingMoments`), so
    that an evaluation after few steps is right too. These move once an optimizer step, towards the mean of all workers'
    batches weighted by their examples: `estimator.optimize.TrainOp` sends them along with the gradients, so they are
    equal on all ranks. Under local SGD they move on each worker by itself and are averaged with the variables.

    The moving variance is that of the population, of which a batch's own variance is too little. Of a batch whose
    examples have the weights w_i, s_i = w_i / sum_j w_j, it takes the unbiased estimate

        sum_i s_i (x_i - mean)^2 / (1 - sum_i s_i^2),   which is sum_i (x_i - mean)^2 / (B - 1) for equal weights.

    Caveat: a `train_op` that is not `TrainOp`'s leaves mean and variance at 0 and 1. A checkpoint of before this
    correction has `moving_mean` and `moving_variance` and is refused for want of `moments` and `weight`.

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
        moving = MovingMoments.make(inputs.shape[-1])
    if not training:
        return tf.nn.batch_normalization(inputs, *moving.mean_and_variance(), beta, gamma, epsilon)
    mean, variance, unbiased = _moments(inputs, example_weights.current())
    moving.keep(mean, unbiased * variance, tf.ones([]), momentum)
    return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)


def _moments(inputs, weights):
    """-> mean and variance by column, float32[n] each; 0 where all weights are 0; what makes the variance unbiased."""
    if weights is None:
        size = tf.cast(tf.shape(inputs)[0], tf.float32)
        return *tf.nn.moments(inputs, [0]), tf.math.divide_no_nan(size, size - 1.0)
    share = tf.math.divide_no_nan(weights, tf.reduce_sum(weights))
    unbiased = tf.math.divide_no_nan(1.0, 1.0 - tf.reduce_sum(tf.square(share)))
    share = share[:, None]
    mean = tf.reduce_sum(share * inputs, 0)
    return mean, tf.reduce_sum(share * tf.math.squared_difference(inputs, tf.stop_gradient(mean)), 0), unbiased
