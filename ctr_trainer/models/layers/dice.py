"""Activations with a learned negative side."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ctr_trainer.features import tensors
from ctr_trainer.models.layers.masks import Present
from ctr_trainer.models.layers.normalization import MovingMoments

tf1 = tf.compat.v1


def prelu(inputs: tf.Tensor, name: str = "prelu") -> tf.Tensor:
    """Computes `max(x, 0) + alpha * min(x, 0)`; alpha is learned for each channel and starts at 0.25.

    Args:
      inputs: x, float32[..., n].
      name: prefix of the variable's name.

    Returns:
      float32[..., n].

    Advice: use it if the batches are too small for the statistics of `dice`.

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
    present: Present | None = None,
) -> tf.Tensor:
    """Computes a PReLU whose corner is at the mean of the data, and whose transition is as wide as the data.

        f(x) = p x + (1 - p) alpha x,   p = sigmoid((x - E[x]) / sqrt(Var[x] + epsilon))

    alpha is learned for each channel and starts at 0. During training, E and Var are computed over this worker's batch.
    Otherwise they are moving averages, corrected for their start (see `MovingMoments`). Like the averages of
    `batch_norm`, these are updated once per optimizer step, towards the mean over all workers' batches, and are equal
    on all ranks. Var is the biased estimate sum_i (x_i - E)^2 / N over the N vectors, not the one with N - 1.

    Args:
      inputs: x, float32[B, ..., n].
      mask: float32[B, ...], the weight of each vector in E and Var, multiplied by its example's weight; None for 1.
        Padding must have the weight 0.
      training: whether E and Var are computed over the batch.
      momentum: the fraction of the moving averages that an optimizer step keeps; None for `default_momentum`.
      epsilon: added to the variance.
      name: name of the variable scope.
      present: positions of the N values of sequences if x is float32[N, n], see `Present`.

    Returns:
      float32[B, ..., n].

    Caveat: with a `train_op` that is not made by `TrainOp`, the moving averages stay at E = 0 and Var = 1.

    Advice: use it in the activation units of `attention_pooling`; elsewhere relu is faster.

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
        flat, weights = tf.reshape(inputs, [-1, channels]), _weights(inputs, mask, present)
        row = tf.ones_like(flat[:, 0]) if weights is None else tf.reshape(weights, [-1])
        output, mean, variance = _of_batch(flat, alpha, row, epsilon)
        moving.keep(mean, variance, _share(tf.reduce_sum(row), inputs, present), momentum)
        return tf.reshape(output, tf.shape(inputs))
    mean, variance = moving.mean_and_variance()
    gate = tf.sigmoid((inputs - mean) * tf.math.rsqrt(variance + epsilon))
    return inputs * (alpha + (1.0 - alpha) * gate)


def _of_batch(
    inputs: tf.Tensor, alpha: tf.Tensor, weights: tf.Tensor, epsilon: float
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Computes Dice with the statistics of the batch; returns (output, mean, variance).

    The gradient is explicit, with all sums over the vectors as matrix products: TensorFlow's gradients of broadcast
    operations reduce over the first axis, which took half of the time of an attention. `inputs` is x, float32[N, n],
    `alpha` is float32[n], and `weights` is float32[N], the weight of each vector in the statistics.
    """

    @tf.custom_gradient
    def apply(x: tf.Tensor, a: tf.Tensor, row: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., Any]]:
        share = tf.math.divide_no_nan(row, tf.reduce_sum(row))[None]
        mean = tf.matmul(share, x)[0]
        centred = x - mean
        variance = tf.matmul(share, tf.square(centred))[0]
        scale = tf.math.rsqrt(variance + epsilon)
        gate = tf.sigmoid(centred * scale)
        slope = a + (1.0 - a) * gate

        def gradients(upstream: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, None]:
            # The gate's part: z = centred * scale; `centred` depends on the mean of x and `scale` on its variance.
            ones = tf.ones_like(row)[None]
            of_slope, rest = upstream * x, 1.0 - gate
            of_z = of_slope * gate * rest * (1.0 - a)
            of_scale = tf.matmul(ones, of_z * centred)[0]
            of_mean = -scale * tf.matmul(ones, of_z)[0]
            of_variance = -0.5 * tf.pow(scale, 3) * of_scale
            # The gradient through the statistics: d mean / d x = share, d variance / d x = 2 share centred.
            by_statistics = (2.0 * of_variance * centred + of_mean) * share[0][:, None]
            return upstream * slope + of_z * scale + by_statistics, tf.matmul(ones, of_slope * rest)[0], None

        return (x * slope, mean, variance), gradients

    return apply(inputs, alpha, weights)


def _weights(inputs: tf.Tensor, mask: tf.Tensor | None, present: Present | None) -> tf.Tensor | None:
    """Returns float32[B, ...], the weight of each vector of `inputs`; None if all weights are 1."""
    weights = tensors.current_weights()
    if weights is None:
        return mask
    if present is not None:
        return tf.gather(weights, present.examples)
    weights = tf.reshape(weights, [-1] + [1] * (inputs.shape.ndims - 2))
    return weights * (tf.ones_like(inputs[..., 0]) if mask is None else mask)


def _share(count: tf.Tensor, inputs: tf.Tensor, present: Present | None) -> tf.Tensor:
    """Returns float32[], the weighted number of vectors per example."""
    weights = tensors.current_weights()
    if weights is not None:
        return tf.math.divide_no_nan(count, tf.reduce_sum(weights))
    number = tf.shape(inputs)[0] if present is None else present.count
    return tf.math.divide_no_nan(count, tf.cast(number, tf.float32))
