"""Products of all pairs of fields, (0, 1), (0, 2), ..., (F-2, F-1), with gradients in few passes.

If they were written with slices, automatic differentiation would make a tensor of zeros as large as the input for each
slice.
"""

from collections.abc import Callable

import numpy as np
import tensorflow as tf


@tf.custom_gradient
def pair_products(
    left: tf.Tensor, right: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
    """Computes the element-wise products left_i * right_j of all pairs i < j.

    Args:
      left, right: float32[B, F, dim].

    Returns:
      float32[B, F (F - 1) / 2, dim].

    Advice: sum or project what comes out soon: it has F (F - 1) / 2 vectors an example.

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
    """Adds the gradients of fields i+1, i+2, ...; sets aside the gradient of a field that no later part reaches."""
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

    Advice: take `fm` where only their sum is wanted: it is linear in the number of fields.

    Example:
      >>> pair_dots(tf.constant([[[1.0, 0.0], [2.0, 1.0], [0.0, 3.0]]])).eval()  # 1 * 2, 0, 1 * 3
      array([[2., 0., 3.]], dtype=float32)
    """
    count = embeddings.shape.as_list()[1]
    rows, columns = np.triu_indices(count, 1)
    all_dots = tf.reshape(tf.matmul(embeddings, embeddings, transpose_b=True), [-1, count * count])
    # The place of each element of the symmetric matrix in [pairs..., zero].
    places = np.full([count, count], len(rows))
    places[rows, columns] = places[columns, rows] = np.arange(len(rows))

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        padded = tf.pad(upstream, [[0, 0], [0, 1]])
        matrix = tf.reshape(tf.gather(padded, places.ravel(), axis=1), [-1, count, count])
        return tf.matmul(matrix, embeddings)

    return tf.gather(all_dots, rows * count + columns, axis=1), gradient
