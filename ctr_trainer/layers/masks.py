"""Reductions of sequences that end in padding."""

import tensorflow as tf

_FAR_BELOW = -1e9


def masked_softmax(scores: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Computes `exp(s_t) / sum_u exp(s_u)` over the positions of the last axis whose mask is 1.

    Args:
      scores: s, float32[..., L].
      mask: float32, 0 or 1, of a shape that broadcasts to the scores'.

    Returns:
      float32[..., L]; 0 at positions of mask 0.

    Advice: give it scores as they are: it takes the largest off, so none overflows.

    Example:
      >>> masked_softmax(tf.constant([[1.0, 1.0, 9.0]]), tf.constant([[1.0, 1.0, 0.0]])).eval()
      array([[0.5, 0.5, 0. ]], dtype=float32)
    """
    return tf.nn.softmax(scores + (1.0 - mask) * _FAR_BELOW) * mask


def masked_mean(inputs: tf.Tensor, mask: tf.Tensor) -> tf.Tensor:
    """Averages the vectors whose mask is 1.

    Args:
      inputs: float32[B, L, n].
      mask: float32[B, L], 0 or 1.

    Returns:
      float32[B, n]; zeros for an example without a vector of mask 1.

    Advice: the first thing to try for a history, before any attention.

    Example:
      >>> masked_mean(tf.constant([[[1.0], [3.0], [9.0]]]), tf.constant([[1.0, 1.0, 0.0]])).eval()
      array([[2.]], dtype=float32)
    """
    total = tf.reduce_sum(inputs * mask[..., None], 1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(mask, 1)[:, None])
