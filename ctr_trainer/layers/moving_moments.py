"""Moving means and variances of a layer's inputs, which the training operation keeps."""

import dataclasses
from typing import Any

import tensorflow as tf

tf1 = tf.compat.v1
_KEY = ("ctr_trainer", "batch statistics")  # No string, so that TensorFlow does not try to serialize what is under it.


@dataclasses.dataclass(frozen=True)
class MovingMoments:
    """Moving mean and variance by channel, right from the first step on.

    With m_t and v_t the mean and the variance of step t, over the batches of all workers,

        S_t = momentum * S_{t-1} + (1 - momentum) * (m_t, v_t)     w_t = momentum * w_{t-1} + 1 - momentum

    from S_0 = 0 and w_0 = 0, and E, Var = S_t / w_t: the correction of Adam for its start, w_t being 1 - momentum^t. A
    step without examples moves neither. The mean of S and w over workers (local SGD) is as right as each of them.

    Attributes:
      moments: variable float32[2, n], S; not trainable: part of checkpoints and of exported graphs.
      weight: variable float32[], w.
    """

    moments: Any
    weight: Any

    @staticmethod
    def make(channels):
        """-> those of the current variable scope."""
        return MovingMoments(
            tf1.get_variable("moments", [2, channels], initializer=tf1.zeros_initializer(), trainable=False),
            tf1.get_variable("weight", [], initializer=tf1.zeros_initializer(), trainable=False),
        )

    def mean_and_variance(self):
        """-> float32[n] each; 0 and 1 before the first step."""
        mean, variance = tf.unstack(tf.math.divide_no_nan(self.moments, self.weight))
        return mean, variance + tf.cast(tf.equal(self.weight, 0.0), tf.float32)

    def keep(self, mean, variance, share, momentum):
        """Adds what a batch says of them to the `batch_statistics` of the graph.

        Args:
          mean, variance: float32[n], of this worker's batch.
          share: float32[], how many vectors per example they are of.
          momentum: the share of the old values that stays at a step.
        """
        value = tf.concat([mean * share, variance * share, share[None]], 0)
        tf1.add_to_collection(_KEY, BatchStatistic(self.moments, self.weight, value, momentum))


@dataclasses.dataclass(frozen=True)
class BatchStatistic:
    """What a batch says of `MovingMoments`.

    A mean over workers that weighs each by its examples is right for sums an example, not for means over vectors, of
    which each worker's examples have another number. So sums travel, and their number with them.

    Attributes:
      moments, weight: the variables of the `MovingMoments`.
      value: float32[2 n + 1]: the batch's mean and variance by channel, each times the number of vectors an example;
        and that number.
      momentum: the share of the old value that stays.
    """

    moments: Any
    weight: Any
    value: Any
    momentum: float

    def update(self, mean, weight):
        """-> operation that moves the moments, but for a step without any vector.

        Args:
          mean: of `value` over the step's batches and workers.
          weight: the examples' weights that it is the mean of.
        """
        count = mean[-1]
        batch = tf.reshape(tf.math.divide_no_nan(mean[:-1], count), self.moments.shape)
        rate = tf.where(tf.minimum(count, weight) > 0, 1.0 - self.momentum, 0.0)
        return tf.group(
            self.moments.assign_sub(rate * (self.moments - batch), read_value=False),
            self.weight.assign_sub(rate * (self.weight - 1.0), read_value=False),
        )


def batch_statistics():
    """-> the `BatchStatistic`s of the current graph's layers that train."""
    return tf1.get_collection(_KEY)
