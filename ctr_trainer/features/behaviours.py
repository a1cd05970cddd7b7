"""Histories without padding, in which equal behaviours share one vector."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Behaviours:
    """The N behaviours of B histories, concatenated. A function of the vectors is computed U times instead of N times.

    Attributes:
      vectors: float32[U, dim], the vectors.
      pairs: int32 or int64[N, 2], the indices of each behaviour's example and vector. Examples are in ascending order,
        and the behaviours of an example are in the order of its history.
    """

    vectors: tf.Tensor
    pairs: tf.Tensor

    def of_examples(self, values: tf.Tensor) -> tf.Tensor:
        """Returns [N], the value of each behaviour's example; `values` is [B]."""
        return tf.gather(values, self.pairs[:, 0])

    def of_vectors(self, values: tf.Tensor) -> tf.Tensor:
        """Returns [N], the value of each behaviour's vector; `values` is [U]."""
        return tf.gather(values, self.pairs[:, 1])

    def sum(self, weights: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Returns float32[B, dim], the weighted sum of each example's behaviours; zeros without behaviours.

        Args:
          weights: float32[N]; they get no gradient.
          count: int32[], the number B of examples.
        """
        matrix = {
            "a_indices": self.pairs,
            "a_values": tf.stop_gradient(weights),
            "a_shape": tf.cast(tf.stack([count, tf.shape(self.vectors)[0]]), tf.int64),
        }

        @tf.custom_gradient
        def product(vectors: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            # TensorFlow's own gradient accepts only int64 indices.
            multiply = tf.raw_ops.SparseTensorDenseMatMul
            return multiply(**matrix, b=vectors), lambda g: multiply(**matrix, b=g, adjoint_a=True)

        return product(self.vectors)
