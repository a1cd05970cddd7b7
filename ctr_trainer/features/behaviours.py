"""Histories without padding, in which equal behaviours share a vector."""

import dataclasses
from collections.abc import Callable

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Behaviours:
    """The N behaviours of B histories, one after another. A function of the vectors is computed U times, not N.

    Attributes:
      vectors: float32[U, dim], the vectors.
      pairs: int32 or int64[N, 2], the example of each behaviour and the number of its vector. Examples are in
        ascending order, and the behaviours of an example in their own order.
    """

    vectors: tf.Tensor
    pairs: tf.Tensor

    def of_examples(self, values: tf.Tensor) -> tf.Tensor:
        """Returns [N], for each behaviour the value of its example in [B]."""
        return tf.gather(values, self.pairs[:, 0])

    def of_vectors(self, values: tf.Tensor) -> tf.Tensor:
        """Returns [N], for each behaviour the value of its vector in [U]."""
        return tf.gather(values, self.pairs[:, 1])

    def sum(self, weights: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
        """Returns float32[B, dim], the sum of each example's behaviours times float32[N]; zeros without behaviours.

        Args:
          weights: float32[N]; they get no gradient.
          count: int32[], B.
        """
        matrix = {
            "a_indices": self.pairs,
            "a_values": tf.stop_gradient(weights),
            "a_shape": tf.cast(tf.stack([count, tf.shape(self.vectors)[0]]), tf.int64),
        }

        @tf.custom_gradient
        def product(vectors: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            # TensorFlow's own gradient takes indices of int64 only.
            multiply = tf.raw_ops.SparseTensorDenseMatMul
            return multiply(**matrix, b=vectors), lambda g: multiply(**matrix, b=g, adjoint_a=True)

        return product(self.vectors)
