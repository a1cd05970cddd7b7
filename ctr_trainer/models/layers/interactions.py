"""Dot products of pairs of fields, and factorization machines."""

from collections.abc import Callable, Mapping

import numpy as np
import tensorflow as tf

from ctr_trainer.features.ranked import Columns, RankedColumns
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.layers.inputs import field_columns


@tf.custom_gradient
def pair_dots(embeddings: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    """Computes the dot products <e_i, e_j> of all pairs i < j, float32[B, F (F - 1) / 2], of e, float32[B, F, dim].

    The gradient is explicit: that of the slices would create, for each slice, a tensor of zeros as large as the input.

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
    """Sums the dot products of all pairs of vectors, float32[B, 1], in time linear in the number of vectors.

        sum_{i<j} <v_i, v_j> = 1/2 * sum_d ((sum_i v_id)^2 - sum_i v_id^2)

    The gradient is `d/dv_i = sum_j v_j - v_i`, which takes two passes over the embeddings; automatic differentiation of
    the right-hand side would take five.

    Args:
      embeddings: float32[B, F, dim], or the result of `layers.inputs.field_columns`.

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


def fm_of_fields(features: Mapping[str, tf.Tensor], model: str) -> tf.Tensor:
    """Computes `fm` of one vector per sparse feature, from the sums that the lookup of the rows has computed.

    The lookup also adds their gradient to that of the rows. It takes two passes over the vectors, the graph six.
    For the arguments and errors, see `layers.inputs.field_columns`, which reads the vectors if there are no sums.
    """
    sums = features.field_sums() if isinstance(features, Features) else None
    return fm(field_columns(features, model)) if sums is None else _fm_of_sums(sums)


@tf.custom_gradient
def _fm_of_sums(sums: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    total, sum_of_squares = sums[:, :-1], sums[:, -1:]
    square_of_sum = tf.reduce_sum(tf.square(total), 1, keepdims=True)
    slopes = tf.concat([total, -0.5 * tf.ones_like(sum_of_squares)], 1)
    return 0.5 * (square_of_sum - sum_of_squares), lambda g: g * slopes


@tf.custom_gradient
def _fm(embeddings: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
    total = tf.reduce_sum(embeddings, 1, keepdims=True)
    square_of_sum = tf.reduce_sum(tf.square(total), 2)
    sum_of_squares = tf.square(tf.math.reduce_euclidean_norm(embeddings, [1, 2]))[:, None]
    return 0.5 * (square_of_sum - sum_of_squares), lambda g: (total - embeddings) * g[..., None]
