"""Second-order interactions by factorization."""

import tensorflow as tf


def fm(embeddings):
    """The sum of the dot products of all pairs of vectors, in time linear in their number.

        sum_{i<j} <v_i, v_j> = 1/2 * sum_d ((sum_i v_id)^2 - sum_i v_id^2)

    Args:
      embeddings: float32[B, F, dim].

    Returns:
      float32[B, 1].

    Source: Rendle, Factorization Machines, ICDM 2010, lemma 3.1.
    """
    square_of_sum = tf.square(tf.reduce_sum(embeddings, 1))
    sum_of_squares = tf.reduce_sum(tf.square(embeddings), 1)
    return 0.5 * tf.reduce_sum(square_of_sum - sum_of_squares, 1, keepdims=True)
