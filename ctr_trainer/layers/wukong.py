"""The layer of WuKong: factorization machines next to linear maps, over vectors of one dim."""

from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.layers.layer_norm import layer_norm
from ctr_trainer.layers.mlp import dense, mlp
from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def wukong_layer(
    inputs: tf.Tensor,
    products: int,
    combinations: int,
    rank: int,
    hidden_units: Sequence[int],
    name: str = "wukong",
) -> tf.Tensor:
    """Makes new vectors of the products of pairs, and as linear combinations, so that each layer doubles the degree.

        Y = norm([F; L] + R X),   F = mlp(norm(X X' P)) W + b,   L = C X

    X X' P are the dot products of all pairs of vectors, compressed by P as they are formed. R is the identity if there
    are as many new vectors as old ones.

    Args:
      inputs: X, float32[B, n, dim].
      products: number of vectors in F.
      combinations: number of vectors in L.
      rank: number of columns of P, float32[n, rank].
      hidden_units: widths of the hidden layers between the products and F.
      name: name of the variable scope.

    Returns:
      Y, float32[B, products + combinations, dim].

    Advice: more layers and a higher rank pay as the data grow; keep as many products as combinations.

    Example:
      >>> wukong_layer(tf.ones([2, 5, 4]), products=3, combinations=2, rank=2, hidden_units=(8,)).shape
      TensorShape([2, 5, 4])

    Source: Zhang et al., Wukong: Towards a Scaling Law for Large-Scale Recommendation, ICML 2024. Each vector is
    normalised on its own; FuxiCTR normalises all of them together, and compresses to columns, not to vectors.
    """
    _, count, dim = inputs.shape.as_list()
    with tf1.variable_scope(name):
        compressed = _combined(inputs, rank, "projection")
        pairs = tf.reshape(tf.matmul(inputs, compressed, transpose_b=True), [-1, count * rank])
        hidden = mlp(layer_norm(pairs, name="pairs_norm"), hidden_units)
        of_products = tf.reshape(dense(hidden, products * dim, "products"), [-1, products, dim])
        both = tf.concat([of_products, _combined(inputs, combinations, "combinations")], 1)
        residual = inputs if count == products + combinations else _combined(inputs, both.shape[1], "residual")
        return layer_norm(both + residual)


def _combined(inputs: tf.Tensor, count: int, name: str) -> tf.Tensor:
    """Returns float32[B, count, dim], linear combinations of float32[B, n, dim]."""
    kernel = glorot(name, [inputs.shape.as_list()[1], count], inputs.shape.as_list()[1], count)
    return tf.einsum("bnd,nk->bkd", inputs, kernel)
