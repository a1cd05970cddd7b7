"""Activations with a learned negative side."""

import tensorflow as tf

from ctr_trainer.features import tensors
from ctr_trainer.layers.batch_norm import MovingMoments

tf1 = tf.compat.v1


def prelu(inputs: tf.Tensor, name: str = "prelu") -> tf.Tensor:
    """Computes `max(x, 0) + alpha * min(x, 0)`; alpha is learned for each channel and starts at 0.25.

    Args:
      inputs: x, float32[..., n].
      name: prefix of the variable's name.

    Returns:
      float32[..., n].

    Advice: take it where the batches are too small for the statistics of `dice`.

    Example:
      >>> prelu(tf.ones([2, 8])).shape
      TensorShape([2, 8])

    Source: He et al., Delving Deep into Rectifiers, ICCV 2015, section 2.1.
    """
    alpha = tf1.get_variable(f"{name}/alpha", [inputs.shape.as_list()[-1]], initializer=tf1.constant_initializer(0.25))
    return tf.maximum(inputs, 0.0) + alpha * tf.minimum(inputs, 0.0)


def dice(
    inputs: tf.Tensor,
    mask: tf.Tensor | None = None,
    training: bool = False,
    momentum: float | None = None,
    epsilon: float = 1e-6,
    name: str = "dice",
) -> tf.Tensor:
    """Computes a PReLU whose corner lies at the mean of the data and is as soft as the data is wide.

        f(x) = p x + (1 - p) alpha x,   p = sigmoid((x - E[x]) / sqrt(Var[x] + epsilon))

    alpha is learned for each channel and starts at 0. While training, E and Var are computed over this worker's batch.
    Otherwise they are moving averages, corrected for their start (see `MovingMoments`). Like the averages of
    `batch_norm`, these move once per optimizer step, towards the mean of all workers' batches, and are equal on all
    ranks. Var is the batch's own, sum_i (x_i - E)^2 / N over its N vectors; the population's is larger by one in N.

    Args:
      inputs: x, float32[B, ..., n].
      mask: float32[B, ...], the weight of each vector in E and Var, multiplied by its example's weight; None for 1.
        Give padding the weight 0.
      training: whether E and Var are the batch's own.
      momentum: the fraction of the moving averages that an optimizer step keeps; None for `default_momentum`.
      epsilon: added to the variance.
      name: of the variable scope.

    Returns:
      float32[B, ..., n].

    Caveat: with a `train_op` that is not made by `TrainOp`, the moving averages stay at E = 0 and Var = 1.

    Advice: it is made for the activation units of `attention_pooling`; elsewhere relu is faster.

    Example:
      >>> dice(tf.ones([2, 5, 8]), mask=tf.ones([2, 5]), training=True).shape
      TensorShape([2, 5, 8])

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 5.3.
    """
    channels = inputs.shape.as_list()[-1]
    with tf1.variable_scope(name):
        alpha = tf1.get_variable("alpha", [channels], initializer=tf1.zeros_initializer())
        moving = MovingMoments.make(channels)
    if training:
        mean, variance, count = _moments(inputs, _weights(inputs, mask))
        moving.keep(mean, variance, _share(count, inputs), momentum)
    else:
        mean, variance = moving.mean_and_variance()
    return _gated(inputs, alpha, mean, tf.math.rsqrt(variance + epsilon))


def _weights(inputs: tf.Tensor, mask: tf.Tensor | None) -> tf.Tensor | None:
    """Returns float32[B, ...], the weight of each vector of `inputs`; None if all weights are 1."""
    weights = tensors.current_weights()
    if weights is None:
        return mask
    weights = tf.reshape(weights, [-1] + [1] * (inputs.shape.ndims - 2))
    return weights * (tf.ones_like(inputs[..., 0]) if mask is None else mask)


def _moments(inputs: tf.Tensor, weights: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (mean float32[n], variance float32[n], sum of the vectors' weights), over all axes but the last."""
    axes = list(range(inputs.shape.ndims - 1))
    if weights is None:
        return *tf.nn.moments(inputs, axes), tf.cast(tf.size(inputs[..., 0]), tf.float32)
    weights = weights[..., None]
    count = tf.reduce_sum(weights)
    mean = tf.math.divide_no_nan(tf.reduce_sum(inputs * weights, axes), count)
    variance = tf.math.divide_no_nan(tf.reduce_sum(tf.math.squared_difference(inputs, mean) * weights, axes), count)
    return mean, variance, count


def _share(count: tf.Tensor, inputs: tf.Tensor) -> tf.Tensor:
    """Returns float32[], the number of vectors per example, by their weights."""
    weights = tensors.current_weights()
    examples = tf.cast(tf.shape(inputs)[0], tf.float32) if weights is None else tf.reduce_sum(weights)
    return tf.math.divide_no_nan(count, examples)


def _gated(inputs: tf.Tensor, alpha: tf.Tensor, mean: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
    gate = tf.sigmoid((inputs - mean) * scale)
    return inputs * (alpha + (1.0 - alpha) * gate)
