"""Interactions of pairs of fields through learned matrices."""

import tensorflow as tf

from ctr_trainer.layers.pairs import pair_products
from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def bilinear(embeddings: tf.Tensor, kind: str = "all", name: str = "bilinear") -> tf.Tensor:
    """Computes `p_ij = (v_i W) * v_j` for all pairs of fields i < j.

    Args:
      embeddings: v, float32[B, F, dim]; F at least 2.
      kind: `all`, one W for all pairs; `each`, a W_i for each left field i; or `interaction`, a W_ij for each pair.
      name: name of the variable scope.

    Returns:
      float32[B, F (F - 1) / 2 * dim].

    Advice: begin with `each`; `interaction` has about F / 2 times its matrices: for few fields and much data.

    Example:
      >>> bilinear(tf.ones([2, 4, 8]), "each").shape  # 6 pairs
      TensorShape([2, 48])

    Source: Huang et al., FiBiNET: Combining Feature Importance and Bilinear Feature Interaction for Click-Through Rate
    Prediction, RecSys 2019, section 3, "Bilinear-interaction layer".
    """
    _, count, dim = embeddings.shape.as_list()
    with tf1.variable_scope(name):
        if kind == "interaction":
            products = _by_pair(embeddings)
        else:
            left = _shared(embeddings) if kind == "all" else _by_field(embeddings)
            products = pair_products(left, embeddings)
    return tf.reshape(products, [-1, count * (count - 1) // 2 * dim])


def _shared(embeddings: tf.Tensor) -> tf.Tensor:
    _, count, dim = embeddings.shape.as_list()
    kernel = glorot("kernel", [dim, dim], dim, dim)
    return tf.reshape(tf.matmul(tf.reshape(embeddings, [-1, dim]), kernel), [-1, count, dim])


def _by_field(embeddings: tf.Tensor) -> tf.Tensor:
    _, count, dim = embeddings.shape.as_list()
    kernels = tf.unstack(glorot("kernel", [count - 1, dim, dim], dim, dim))
    *others, last = tf.unstack(embeddings, axis=1)  # The last field stands on the left of no pair.
    return tf.stack([*(tf.matmul(x, kernel) for x, kernel in zip(others, kernels, strict=True)), last], 1)


def _by_pair(embeddings: tf.Tensor) -> tf.Tensor:
    _, count, dim = embeddings.shape.as_list()
    left = [
        tf.matmul(x, glorot(f"kernel_{i}", [dim, (count - 1 - i) * dim], dim, dim))
        for i, x in enumerate(tf.unstack(embeddings, axis=1)[:-1])
    ]
    left = tf.reshape(tf.concat(left, 1), [-1, count * (count - 1) // 2, dim])
    return left * pair_products(tf.ones_like(embeddings), embeddings)
