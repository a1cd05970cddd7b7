"""Activations whose negative side is learned."""

import tensorflow as tf

from ctr_trainer.features import example_weights
from ctr_trainer.layers.moving_moments import MovingMoments

tf1 = tf.compat.v1


def prelu(inputs, name="prelu"):
    """`max(x, 0) + alpha * min(x, 0)`, alpha learned by channel, 0.25 at first.

    Args:
      inputs: float32[..., n].

    Source: He et al., Delving Deep into Rectifiers, ICCV 2015, section 2.1.
    """
    alpha = tf1.get_variable(f"{name}/alpha", [inputs.shape[-1]], initializer=tf1.constant_initializer(0.25))
    return tf.maximum(inputs, 0.0) + alpha * tf.minimum(inputs, 0.0)


def dice(inputs, mask=None, training=False, momentum=0.99, epsilon=1e-6, name="dice"):
    """PReLU whose corner lies where the data is, and is as soft as the data is wide.

        f(x) = p x + (1 - p) alpha x,   p = sigmoid((x - E[x]) / sqrt(Var[x] + epsilon))

    alpha is learned by channel and is 0 at first. E and Var are those of this worker's batch while training, and else
    their moving averages over the steps so far, corrected for their start (see `MovingMoments`). These move once an
    optimizer step, towards the mean of all workers' batches, as `batch_norm`'s do: equal on all ranks. Var is a batch's
    own, sum_i (x_i - E)^2 / n: consistent, and less than the population's by one part in n, the batch's vectors.

    Args:
      inputs: float32[B, ..., n].
      mask: float32[B, ...], the weight of each vector in E and Var, beside that of its example; None for 1. Padding
        must not move them.
      training: whether E and Var are the batch's.
      momentum: of the moving averages, a step.

    Caveat: a `train_op` that is not `TrainOp`'s leaves the moving averages as if there were none: E is 0, Var 1.

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 5.3.
    """
    channels = inputs.shape[-1]
    with tf1.variable_scope(name):
        alpha = tf1.get_variable("alpha", [channels], initializer=tf1.zeros_initializer())
        moving = MovingMoments.make(channels)
    if training:
        mean, variance, count = _moments(inputs, _weights(inputs, mask))
        moving.keep(mean, variance, _share(count, inputs), momentum)
    else:
        mean, variance = moving.mean_and_variance()
    return _gated(inputs, alpha, mean, tf.math.rsqrt(variance + epsilon))


def _weights(inputs, mask):
    """-> float32[B, ...], what each vector of float32[B, ..., n] counts; None for 1."""
    weights = example_weights.current()
    if weights is None:
        return mask
    weights = tf.reshape(weights, [-1] + [1] * (inputs.shape.ndims - 2))
    return weights * (tf.ones_like(inputs[..., 0]) if mask is None else mask)


def _moments(inputs, weights):
    """-> mean and variance float32[n] over all but the last axis; of how many vectors, by their weights."""
    axes = list(range(inputs.shape.ndims - 1))
    if weights is None:
        return *tf.nn.moments(inputs, axes), tf.cast(tf.size(inputs[..., 0]), tf.float32)
    weights = weights[..., None]
    count = tf.reduce_sum(weights)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * weights, axes), count)
    variance = tf.math.divide_no_nan(tf.reduce_sum(tf.math.squared_difference(inputs, mean) * weights, axes), count)
    return mean, variance, count


def _share(count, inputs):
    """-> float32[], how many vectors an example has."""
    weights = example_weights.current()
    examples = tf.cast(tf.shape(inputs)[0], tf.float32) if weights is None else tf.reduce_sum(weights)
    return tf.math.divide_no_nan(count, examples)


def _gated(inputs, alpha, mean, scale):
    gate = tf.sigmoid((inputs - mean) * scale)
    return inputs * (alpha + (1.0 - alpha) * gate)
