"""Activations with a learned negative side."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ctr_trainer.features import tensors
from ctr_trainer.models.layers.masks import Present
from ctr_trainer.models.layers.normalization import MovingMoments

tf1 = tf.compat.v1
_EPSILON = 1e-6


def prelu(inputs: tf.Tensor, name: str = "prelu") -> tf.Tensor:
    """Computes `max(x, 0) + alpha * min(x, 0)` of x, float32[..., n]; each channel learns its alpha, at first 0.25.

    Source: He et al., Delving Deep into Rectifiers, ICCV 2015, section 2.1.
    """
    alpha = tf1.get_variable(f"{name}/alpha", [inputs.shape.as_list()[-1]], initializer=tf1.constant_initializer(0.25))
    return tf.maximum(inputs, 0.0) + alpha * tf.minimum(inputs, 0.0)


def dice(inputs: tf.Tensor, present: Present | None = None, training: bool = False, name: str = "dice") -> tf.Tensor:
    """Computes a PReLU whose corner is at the mean of the data, and whose transition is as wide as the data.

        f(x) = p x + (1 - p) alpha x,   p = sigmoid((x - E[x]) / sqrt(Var[x] + 1e-6))

    alpha is learned for each channel and starts at 0. During training, E and Var are computed over this worker's batch,
    weighted by the weights of the examples. Otherwise they are moving averages, corrected for their start (see
    `MovingMoments`). Like the averages of `batch_norm`, these are updated once per optimizer step, towards the mean
    over all workers' batches, and are equal on all ranks. Var is the biased estimate sum_i (x_i - E)^2 / N over the N
    vectors, not the one with N - 1.

    Args:
      inputs: x, float32[N, n]; the result has the same shape.
      present: positions of the N values in sequences; None if each example has one value.
      training: whether E and Var are computed over the batch.
      name: name of the variable scope.

    Caveat: with a `train_op` that is not made by `TrainOp`, the moving averages stay at E = 0 and Var = 1.

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 5.3.
    """
    channels = inputs.shape.as_list()[-1]
    with tf1.variable_scope(name):
        alpha = tf1.get_variable("alpha", [channels], initializer=tf1.zeros_initializer())
        moving = MovingMoments.make(channels)
    if training:
        weights = tensors.current_weights()
        if weights is None:
            row, total = tf.ones_like(inputs[:, 0]), tf.shape(inputs)[0] if present is None else present.count
        else:
            row, total = weights if present is None else tf.gather(weights, present.examples), tf.reduce_sum(weights)
        output, mean, variance = _of_batch(inputs, alpha, row)
        per_example = tf.math.divide_no_nan(tf.reduce_sum(row), tf.cast(total, tf.float32))
        moving.keep(mean, variance, per_example, momentum=None)
        return output
    mean, variance = moving.mean_and_variance()
    gate = tf.sigmoid((inputs - mean) * tf.math.rsqrt(variance + _EPSILON))
    return inputs * (alpha + (1.0 - alpha) * gate)


@tf.custom_gradient
def _of_batch(x: tf.Tensor, a: tf.Tensor, row: tf.Tensor) -> tuple[tuple[tf.Tensor, ...], Callable[..., Any]]:
    """Computes (Dice, mean, variance) of x, float32[N, n], with alpha a and `row`, the weights of the vectors."""
    # The gradient is explicit, with all sums over the vectors as matrix products: TensorFlow's gradients of broadcast
    # operations reduce over the first axis, which took half of the time of an attention.
    share = tf.math.divide_no_nan(row, tf.reduce_sum(row))[None]
    mean = tf.matmul(share, x)[0]
    centred = x - mean
    variance = tf.matmul(share, tf.square(centred))[0]
    scale = tf.math.rsqrt(variance + _EPSILON)
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
