"""Pools a long history: behaviours count by how often random hyperplanes put them on the target's side."""

import functools

import numpy as np
import tensorflow as tf

_SEED = 20220514


def sampled_attention(
    target: tf.Tensor,
    history: tf.Tensor,
    mask: tf.Tensor,
    signatures: int = 16,
    bits: int = 3,
    normalize: bool = False,
) -> tf.Tensor:
    """Averages over m signatures the sum of the behaviours that have the target's signature.

        1 / m * sum_i sum_t [s_i(h_t) = s_i(q)] h_t,   s_i(x) = the signs of `bits` random projections of x

    Two vectors at angle a share a signature with probability (1 - a / pi)^bits, which stands in the place of attention.
    There is nothing to learn but the rows, and the projections are the same in all runs.

    Args:
      target: q, float32[B, dim].
      history: h, float32[B, L, dim].
      mask: float32[B, L], 1 for a behaviour and 0 for padding.
      signatures: m.
      bits: projections per signature; more of them let fewer behaviours through.
      normalize: whether the sum of each signature is divided by its length.

    Returns:
      float32[B, dim]; zeros for an empty history.

    Advice: take it for histories of several hundreds; `attention_pooling` tells more from a short one.

    Example:
      >>> sampled_attention(tf.ones([2, 4]), tf.ones([2, 1000, 4]), tf.ones([2, 1000])).shape
      TensorShape([2, 4])

    Source: Cao et al., Sampling Is All You Need on Modeling Long-Term User Behaviors for CTR Prediction, CIKM 2022,
    as in FuxiCTR's SDIM, whose sums are divided by their lengths with `l2_norm`.
    """
    dim = target.shape.as_list()[1]
    planes = np.random.default_rng(_SEED).normal(size=(bits, dim, signatures)).astype(np.float32)
    behaviours = history * mask[..., None]
    # A behaviour is on the target's side of a plane if its projection on the normal that points there is above 0.
    asked, given = tf.stop_gradient(target), tf.stop_gradient(behaviours)
    sides = [tf.matmul(given, plane * tf.sign(tf.matmul(asked, plane))[:, None]) for plane in planes]
    shared = tf.cast(functools.reduce(tf.minimum, sides) > 0, tf.float32)  # [B, L, m]; padding is on no side.
    if not normalize:
        return tf.matmul(tf.reduce_mean(shared, 2)[:, None], behaviours)[:, 0]
    sums = tf.matmul(shared, behaviours, transpose_a=True)
    return tf.reduce_mean(tf.math.l2_normalize(sums, 2), 1)
