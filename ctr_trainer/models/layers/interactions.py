"""Interactions between pairs of fields: products, factorization machines, learned matrices and attention.

`pair_products` and `pair_dots` have explicit gradients: automatic differentiation of slices would create, for each
slice, a tensor of zeros as large as the input.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from ctr_trainer.features.ranked import Columns, RankedColumns
from ctr_trainer.models.layers.weights import glorot

tf1 = tf.compat.v1


@tf.custom_gradient
def pair_products(
    left: tf.Tensor, right: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    """Computes the element-wise products left_i * right_j of all pairs i < j.

    Args:
      left, right: float32[B, F, dim].

    Returns:
      float32[B, F (F - 1) / 2, dim].

    Advice: sum or project the output soon: it has F (F - 1) / 2 vectors per example.

    Example:
      >>> x = tf.constant([[[1.0], [2.0], [3.0]]])
      >>> pair_products(x, x).eval().ravel()  # 1 * 2, 1 * 3, 2 * 3
      array([2., 3., 6.], dtype=float32)
    """
    count = left.shape.as_list()[1]
    products = tf.concat([left[:, i : i + 1] * right[:, i + 1 :] for i in range(count - 1)], 1)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        of_left: list[tf.Tensor] = []
        of_right: tuple[list[tf.Tensor], tf.Tensor] | None = None
        for i, part in enumerate(tf.split(upstream, list(range(count - 1, 0, -1)), 1)):
            of_left.append(tf.reduce_sum(part * right[:, i + 1 :], 1))
            of_right = _added(of_right, part * left[:, i : i + 1])
        of_left.append(tf.zeros_like(of_left[0]))
        assert of_right is not None
        return tf.stack(of_left, 1), tf.concat([*of_right[0], of_right[1]], 1)

    return products, gradient


def _added(total: tuple[list[tf.Tensor], tf.Tensor] | None, part: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Adds the gradients of fields i+1, i+2, ...; sets aside the gradient of a field if no later part adds to it."""
    if total is None:
        zeros = tf.zeros_like(part[:, :1])
        return [zeros], part
    done, rest = total
    return [*done, rest[:, :1]], rest[:, 1:] + part


@tf.custom_gradient
def pair_dots(embeddings: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Computes the dot products <e_i, e_j> of all pairs i < j.

    Args:
      embeddings: float32[B, F, dim].

    Returns:
      float32[B, F (F - 1) / 2].

    Advice: use `fm` if you need only the sum of the products: it is linear in the number of fields.

    Example:
      >>> pair_dots(tf.constant([[[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]]])).eval()  # 1 * 2, 0, 1 * 3
      array([[2., 0., 3.]], dtype=float32)
    """
    count = embeddings.shape.as_list()[1]
    rows, columns = np.triu_indices(count, 1)
    all_dots = tf.reshape(tf.matmul(embeddings, embeddings, transpose_b=True), [-1, count * count])
    # The position of each element of the symmetric matrix in [pairs..., zero].
    places = np.full([count, count], len(rows))
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(upstream, [[0, 0], [0, 1]])
        matrix = tf.reshape(tf.gather(padded, places.ravel(), axis=1), [-1, count, count])
        return tf.matmul(matrix, embeddings)

    return tf.gather(all_dots, rows * count + columns, axis=1), gradient


def fm(embeddings: Columns) -> tf.Tensor:
    """Sums the dot products of all pairs of vectors, in time linear in the number of vectors.

        sum_{i<j} <v_i, v_j> = 1/2 * sum_d ((sum_i v_id)^2 - sum_i v_id^2)

    The gradient is `d/dv_i = sum_j v_j - v_i`, which takes two passes over the embeddings; automatic differentiation of
    the right-hand side would take five.

    Args:
      embeddings: float32[B, F, dim], or the result of `layers.inputs.field_columns`.

    Returns:
      float32[B, 1].

    Advice: add it to a deep network if all embeddings have the same dim: it has no weights and costs almost nothing.

    Example:
      >>> fm(tf.constant([[[1.0, 2.0], [3.0, 4.0]]])).eval().round()  # 1 * 3 + 2 * 4
      array([[11.]], dtype=float32)

    Source: Rendle, Factorization Machines, ICDM 2010, lemma 3.1.
    """
    if isinstance(embeddings, RankedColumns):
        context, candidates = embeddings.context(), embeddings.candidates()
        across = tf.reduce_sum(context, 1) * tf.reduce_sum(candidates, 1)
        return _fm(context) + _fm(candidates) + tf.reduce_sum(across, 1, keepdims=True)
    return _fm(embeddings)


@tf.custom_gradient
def _fm(embeddings: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    total = tf.reduce_sum(embeddings, 1, keepdims=True)
    square_of_sum = tf.reduce_sum(tf.square(total), 2)
    sum_of_squares = tf.square(tf.math.reduce_euclidean_norm(embeddings, [1, 2]))[:, None]

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return (total - embeddings) * upstream[..., None]

    return 0.5 * (square_of_sum - sum_of_squares), gradient


@tf.custom_gradient
def ffm(vectors: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Sums, over all pairs of fields, the dot product of the vectors that the two fields have for each other.

        sum_{i<j} <v_{i,j}, v_{j,i}>

    The gradient is `d/dv_ij = v_ji`, and 0 for i = j.

    Args:
      vectors: float32[B, F, F, k]; v_ij is the vector of field i's feature for field j.

    Returns:
      float32[B, 1].

    Advice: use a small k, 2 to 4: each feature has F vectors, so the rows take F times the memory of `fm`.

    Example:
      >>> ffm(tf.constant([[[[9.0], [2.0]], [[5.0], [9.0]]]])).eval()  # 2 * 5; the 9s are of a field with itself
      array([[10.]], dtype=float32)

    Source: Juan et al., Field-aware Factorization Machines for CTR Prediction, RecSys 2016, section 3.
    """
    count = vectors.shape.as_list()[1]
    others = (1.0 - tf.eye(count))[:, :, None]
    mirrored = tf.transpose(vectors, [0, 2, 1, 3]) * others

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return mirrored * upstream[..., None, None]

    return 0.5 * tf.reduce_sum(vectors * mirrored, [1, 2, 3])[:, None], gradient


def bilinear(embeddings: tf.Tensor, kind: str = "all", name: str = "bilinear") -> tf.Tensor:
    """Computes `p_ij = (v_i W) * v_j` for all pairs of fields i < j.

    Args:
      embeddings: v, float32[B, F, dim]; F at least 2.
      kind: `all`, one W for all pairs; `each`, a W_i for each left field i; or `interaction`, a W_ij for each pair.
      name: name of the variable scope.

    Returns:
      float32[B, F (F - 1) / 2 * dim].

    Advice: begin with `each`. `interaction` has about F / 2 times the matrices, so use it for few fields and much data.

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
    *others, last = tf.unstack(embeddings, axis=1)  # The last field is not the left one of any pair.
    return tf.stack([*(tf.matmul(x, kernel) for x, kernel in zip(others, kernels, strict=True)), last], 1)


def _by_pair(embeddings: tf.Tensor) -> tf.Tensor:
    _, count, dim = embeddings.shape.as_list()
    left = [
        tf.matmul(x, glorot(f"kernel_{i}", [dim, (count - 1 - i) * dim], dim, dim))
        for i, x in enumerate(tf.unstack(embeddings, axis=1)[:-1])
    ]
    left = tf.reshape(tf.concat(left, 1), [-1, count * (count - 1) // 2, dim])
    return left * pair_products(tf.ones_like(embeddings), embeddings)


def interacting(fields: tf.Tensor, heads: int, head_dim: int, name: str) -> tf.Tensor:
    """Replaces each field's vector by a mix of all fields' vectors, weighted by similarity, plus a residual.

        a_hmk = softmax_k <Q_h e_m, K_h e_k>,    e'_m = relu(concat_h(sum_k a_hmk V_h e_k) + W_res e_m)

    Args:
      fields: e, float32[B, F, n].
      heads: number of attention heads.
      head_dim: width of each head's queries, keys and values.
      name: name of the variable scope.

    Returns:
      float32[B, F, heads * head_dim].

    Advice: stack two or three of these layers, with two heads each; the cost grows with the square of F.

    Example:
      >>> interacting(tf.ones([2, 5, 4]), heads=2, head_dim=8, name="attention").shape
      TensorShape([2, 5, 16])

    Source: Song et al., AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural Networks, CIKM 2019,
    equations 5 to 8.
    """
    _, count, width = fields.shape.as_list()
    units = heads * head_dim
    flat = tf.reshape(fields, [-1, width])

    def projected(kernel: str) -> tf.Tensor:
        return tf.reshape(tf.matmul(flat, glorot(kernel, [width, units], width, units)), [-1, count, heads, head_dim])

    with tf1.variable_scope(name):
        queries, keys, values = (tf.transpose(projected(which), [0, 2, 1, 3]) for which in ("query", "key", "value"))
        weights = tf.nn.softmax(tf.matmul(queries, keys, transpose_b=True))
        mixed = tf.transpose(tf.matmul(weights, values), [0, 2, 1, 3])
        return tf.nn.relu(tf.reshape(mixed + projected("residual"), [-1, count, units]))
