"""Second-order interactions by factorization."""

from collections.abc import Callable

import tensorflow as tf

from ctr_trainer.features.ranked import Columns, RankedColumns


def fm(embeddings: Columns) -> tf.Tensor:
    """Sums the dot products of all pairs of vectors, in time linear in the number of vectors.

        sum_{i<j} <v_i, v_j> = 1/2 * sum_d ((sum_i v_id)^2 - sum_i v_id^2)

    Its gradient is `d/dv_i = sum_j v_j - v_i`. It takes two passes over the embeddings; automatic differentiation of
    the right-hand side would take five.

    Args:
      embeddings: float32[B, F, dim], or what `layers.inputs.field_columns` returned.

    Returns:
      float32[B, 1].

    Advice: add it to a deep network wherever all embeddings have one dim: it has no weights and costs next to
    nothing.

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
