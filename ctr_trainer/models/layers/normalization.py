"""Layer and batch normalization; the training operation updates the moving statistics of batch normalization."""

import dataclasses
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ctr_trainer.features import tensors

tf1 = tf.compat.v1
# The moving statistics average over this share of an epoch, within these limits of the number of steps.
_FEWEST_STEPS, _MOST_STEPS, _SHARE_OF_EPOCH = 10.0, 100.0, 0.1
_KEY = ("ctr_trainer", "batch statistics")  # Not a string, so that TensorFlow does not serialize the collection.


def layer_norm(inputs: tf.Tensor, shared: bool = True, name: str = "layer_norm") -> tf.Tensor:
    """Normalises the last axis: `gamma * (x - mean(x)) / sqrt(var(x) + 1e-5) + beta`.

    Args:
      inputs: x, float32[B, n] or float32[B, F, n]; the result has the same shape.
      shared: whether the F vectors of an example share gamma and beta, float32[n]; otherwise each has its own, which
        suits embeddings, because fields differ in scale.
      name: name of the variable scope.

    Source: Ba et al., Layer Normalization, arXiv 1607.06450, section 3.
    """
    shape = [inputs.shape.as_list()[-1]] if shared else inputs.shape.as_list()[1:]
    with tf1.variable_scope(name):
        gamma = tf1.get_variable("gamma", shape, initializer=tf1.ones_initializer())
        beta = tf1.get_variable("beta", shape, initializer=tf1.zeros_initializer())
    return _normalized(inputs) * gamma + beta


@tf.custom_gradient
def _normalized(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Normalizes x; the gradient is `(g - mean(g) - y mean(g y)) / sqrt(var(x) + 1e-5)`, where y is the output."""
    centered = x - tf.reduce_mean(x, -1, keepdims=True)
    scale = tf.math.rsqrt(tf.reduce_mean(tf.square(centered), -1, keepdims=True) + 1e-5)
    output = centered * scale

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        along = tf.reduce_mean(upstream * output, -1, keepdims=True)
        return scale * (upstream - tf.reduce_mean(upstream, -1, keepdims=True) - output * along)

    return output, gradient


@dataclasses.dataclass(frozen=True)
class MovingMoments:
    """Moving mean and variance of each channel, unbiased from the first step.

    If m_t and v_t are the mean and the variance of step t over the batches of all workers,

        S_t = momentum * S_{t-1} + (1 - momentum) * (m_t, v_t)     w_t = momentum * w_{t-1} + 1 - momentum

    where S_0 = 0, w_0 = 0 and (E, Var) = S_t / w_t. As w_t is 1 - momentum^t, this is the bias correction of Adam. A
    step without examples changes neither S nor w. If local SGD averages S and w over the workers, the averages are as
    accurate as each worker's values.

    Attributes:
      moments: S, variable float32[2, n]; not trainable, but part of checkpoints and of exported graphs.
      weight: w, variable float32[].
    """

    moments: Any
    weight: Any

    @staticmethod
    def make(channels: int) -> "MovingMoments":
        """Returns the MovingMoments of the current variable scope, for `channels` channels."""
        return MovingMoments(
            tf1.get_variable("moments", [2, channels], initializer=tf1.zeros_initializer(), trainable=False),
            tf1.get_variable("weight", [], initializer=tf1.zeros_initializer(), trainable=False),
        )

    def mean_and_variance(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns (E float32[n], Var float32[n]); 0 and 1 before the first step."""
        mean, variance = tf.unstack(tf.math.divide_no_nan(self.moments, self.weight))
        return mean, variance + tf.cast(tf.equal(self.weight, 0.0), tf.float32)

    def keep(self, mean: tf.Tensor, variance: tf.Tensor, share: tf.Tensor, momentum: float | None) -> None:
        """Adds the moments of a batch to the `batch_statistics` of the graph.

        Args:
          mean, variance: float32[n], computed over this worker's batch.
          share: float32[], the number of vectors per example from which the moments were computed.
          momentum: the fraction of the old values that a step keeps; None for `default_momentum`.
        """
        value = tf.concat([mean * share, variance * share, share[None]], 0)
        tf1.add_to_collection(_KEY, BatchStatistic(self.moments, self.weight, value, momentum))


@dataclasses.dataclass(frozen=True)
class BatchStatistic:
    """The moments of one worker's batch, which update a `MovingMoments`.

    The workers' values are averaged with the examples as weights. This is exact for sums per example, but not for means
    over vectors, because the number of vectors per example differs between workers. Therefore the sums per example are
    averaged, together with the number of vectors per example.

    Attributes:
      moments, weight: the variables of the `MovingMoments`.
      value: float32[2 n + 1]: the batch's mean and variance of each channel, both times the number of vectors per
        example; then that number.
      momentum: the fraction of the old values that a step keeps; None for `default_momentum`.
    """

    moments: Any
    weight: Any
    value: Any
    momentum: float | None

    def update(self, mean: tf.Tensor, weight: tf.Tensor, epoch_steps: float | None = None) -> tf.Operation:
        """Returns the operation that updates the moments; a step without any vector changes nothing.

        Args:
          mean: float32[2 n + 1], the mean of `value` over the batches and workers of the step.
          weight: float32[], the sum of the weights of these batches' examples.
          epoch_steps: optimizer steps per epoch; None if unknown.
        """
        momentum = default_momentum(epoch_steps) if self.momentum is None else self.momentum
        count = mean[-1]
        batch = tf.reshape(tf.math.divide_no_nan(mean[:-1], count), self.moments.shape)
        rate = tf.where(tf.minimum(count, weight) > 0, 1.0 - momentum, 0.0)
        return tf.group(
            self.moments.assign_sub(rate * (self.moments - batch), read_value=False),
            self.weight.assign_sub(rate * (self.weight - 1.0), read_value=False),
        )


def default_momentum(epoch_steps: float | None = None) -> float:
    """Returns the momentum with which moving statistics average over a tenth of an epoch, limited to 10 to 100 steps.

        momentum = 1 - 1 / min(max(epoch_steps / 10, 10), 100)

    With a momentum of 0.99 and 50 steps per epoch, the first evaluations would use statistics of weights from much
    earlier steps.

    `epoch_steps` are the optimizer steps per epoch; None if unknown, for which the momentum is 0.99.
    """
    if epoch_steps is None:
        return 1.0 - 1.0 / _MOST_STEPS
    return 1.0 - 1.0 / min(max(_SHARE_OF_EPOCH * epoch_steps, _FEWEST_STEPS), _MOST_STEPS)


def batch_statistics() -> list[BatchStatistic]:
    """Returns the `BatchStatistic`s that the layers of the current graph have added."""
    return tf1.get_collection(_KEY)


def batch_norm(
    inputs: tf.Tensor,
    training: bool,
    momentum: float | None = None,
    epsilon: float = 1e-3,
    name: str = "batch_norm",
    copies: int = 1,
) -> tf.Tensor:
    """Normalises each column: `gamma * (x - mean) / sqrt(variance + epsilon) + beta`.

    During training, mean and variance are computed over this worker's batch, weighted by the examples' weights, so that
    padding does not count. Otherwise they are moving statistics, corrected for their start (see `MovingMoments`), so
    that an evaluation after few steps is also correct. The moving statistics are updated once per optimizer step,
    towards the mean over all workers' batches, weighted by their examples. `estimator.optimize.TrainOp` exchanges the
    updates together with the gradients, so the statistics are equal on all ranks. Under local SGD, each worker updates
    its own statistics, and they are averaged together with the variables.

    The moving variance estimates the variance of the population, and the variance of a batch is smaller. Therefore each
    batch contributes the unbiased estimate. With s_i = w_i / sum_j w_j for the weights w_i of its examples, this is

        sum_i s_i (x_i - mean)^2 / (1 - sum_i s_i^2),   and sum_i (x_i - mean)^2 / (B - 1) for equal weights.

    Caveat: with a `train_op` of the program's own, each worker updates its own statistics, and rank 0's are saved. With
    batches of fewer than some hundred examples the statistics are noisy, and `layer_norm` is better.

    Args:
      inputs: x, float32[B, n]; with `copies`, float32[copies * B, n]; the result has the same shape.
      training: whether this graph trains.
      momentum: the fraction of the moving statistics that an optimizer step keeps; None for `default_momentum`.
      epsilon: added to the variance.
      name: name of the variable scope.
      copies: how often x repeats the batch's examples, one batch after the other.

    Source: Ioffe and Szegedy, Batch Normalization, ICML 2015, algorithms 1 and 2.
    """
    width = [inputs.shape.as_list()[-1]]
    with tf1.variable_scope(name):
        gamma = tf1.get_variable("gamma", width, initializer=tf1.ones_initializer())
        beta = tf1.get_variable("beta", width, initializer=tf1.zeros_initializer())
        moving = MovingMoments.make(inputs.shape.as_list()[-1])
    if not training:
        return tf.nn.batch_normalization(inputs, *moving.mean_and_variance(), beta, gamma, epsilon)
    weights = tensors.current_weights()
    weights = tf.tile(weights, [copies]) if weights is not None and copies > 1 else weights
    mean, variance, unbiased = batch_moments(inputs, weights)
    moving.keep(mean, unbiased * variance, tf.ones([]), momentum)
    return tf.nn.batch_normalization(inputs, mean, variance, beta, gamma, epsilon)


def batch_moments(inputs: tf.Tensor, weights: tf.Tensor | None) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns (mean, variance, factor that makes the variance unbiased); all are 0 if all weights are 0."""
    if weights is None:
        size = tf.cast(tf.shape(inputs)[0], tf.float32)
        return *tf.nn.moments(inputs, [0]), tf.math.divide_no_nan(size, size - 1.0)
    share = tf.math.divide_no_nan(weights, tf.reduce_sum(weights))
    unbiased = tf.math.divide_no_nan(1.0, 1.0 - tf.reduce_sum(tf.square(share)))
    share = share[:, None]
    mean = tf.reduce_sum(share * inputs, 0)
    return mean, tf.reduce_sum(share * tf.math.squared_difference(inputs, tf.stop_gradient(mean)), 0), unbiased
