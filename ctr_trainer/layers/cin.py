"""The compressed interaction network of xDeepFM."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def cin(embeddings: tf.Tensor, layer_sizes: Sequence[int], name: str = "cin") -> tf.Tensor:
    """Computes interactions of growing degree between vectors, and sums each layer's feature maps over the dims.

        X^k_h = sum_i sum_j W^kh_ij (X^{k-1}_i * X^0_j),    p^k_h = sum_d X^k_hd

    Args:
      embeddings: X^0, float32[B, F, dim].
      layer_sizes: number of feature maps of each layer.
      name: name of the variable scope.

    Returns:
      p^1, p^2, ... side by side, float32[B, sum(layer_sizes)].

    Advice: begin with two layers; the time grows with F and with the product of the sizes of two layers that follow
    each other.

    Example:
      >>> cin(tf.ones([2, 5, 4]), (16, 8)).shape
      TensorShape([2, 24])

    Source: Lian et al., xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems, KDD
    2018, equations 6 and 7; with the identity as activation, which its section 4 finds best.
    """
    _, fields, dim = embeddings.shape.as_list()
    first = tf.reshape(tf.transpose(embeddings, [0, 2, 1]), [-1, fields])
    maps, pooled = first, []
    with tf1.variable_scope(name):
        for index, size in enumerate(layer_sizes):
            pairs = maps.shape.as_list()[1] * fields
            kernel = glorot(f"kernel_{index}", [pairs, size], pairs, size)
            maps = tf.matmul(tf.reshape(outer(maps, first), [-1, pairs]), kernel)
            pooled.append(tf.reduce_sum(tf.reshape(maps, [-1, dim, size]), 1))
    return tf.concat(pooled, 1)


@tf.custom_gradient
def outer(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    """Returns the products of all pairs, float32[n, h, f], of float32[n, h] and float32[n, f].

    Its gradients are matrix-vector products; automatic differentiation would make two more tensors of this size.
    """

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return (
            tf.squeeze(tf.matmul(upstream, b[:, :, None]), 2),
            tf.squeeze(tf.matmul(a[:, None, :], upstream), 1),
        )

    return a[:, :, None] * b[:, None, :], gradient
