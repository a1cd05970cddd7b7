"""Reductions of sequences that end in padding."""

import tensorflow as tf

_FAR_BELOW = -1e9


def masked_softmax(scores, mask):
    """`exp(s_t) / sum_u exp(s_u)` over those of mask 1 on the last axis; 0 elsewhere, and where there are none.

    Args:
      scores: float32[..., L].
      mask: float32, 0 or 1, of a shape that broadcasts to that of the scores.
    """
    return tf.nn.softmax(scores + (1.0 - mask) * _FAR_BELOW) * mask


def masked_mean(inputs, mask):
    """The mean of the vectors of mask 1; zeros where there are none.

    Args:
      inputs: float32[B, L, n].
      mask: float32[B, L].

    Returns:
      float32[B, n].
    """
    total = tf.reduce_sum(inputs * mask[..., None], 1)
    return tf.math.divide_no_nan(total, tf.reduce_sum(mask, 1)[:, None])
