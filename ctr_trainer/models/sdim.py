"""SDIM: long histories, pooled by random signatures that behaviours share with the target."""

import dataclasses
import functools
import math

import numpy as np
import tensorflow as tf

from ctr_trainer.features.behaviours import Behaviours
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.head import Labels, binary_head
from ctr_trainer.models.layers.inputs import flat_inputs
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.params import HistoryParams
from ctr_trainer.models.shared import histories, tower
from ctr_trainer.settings.setting import setting

_SEED = 20220514
_WORD = 64
MOST_BITS = _WORD - 1


@dataclasses.dataclass(frozen=True)
class Params(HistoryParams):
    """The params of SDIM."""

    signatures: int = setting(16, "random signatures", minimum=1)
    bits: int = setting(
        3,
        "random projections per signature, at most 63; more of them let fewer behaviours through",
        minimum=1,
        maximum=MOST_BITS,
    )
    normalize: bool = setting(False, "divide the sum of each signature's behaviours by its length")


def model_fn(features: Features, labels: Labels, mode: str, params: Params) -> EstimatorSpec:
    """`p = sigmoid(mlp([e_1, ..., e_F, x, v_1, ..., v_S]))`, with v_s the `sampled_attention` of history s.

    Advice: for histories of hundreds to thousands; for tens of behaviours take `din`. On MovieLens `normalize` costs
    0.01 of validation AUC.

    Source: Cao et al., Sampling Is All You Need on Modeling Long-Term User Behaviors for CTR Prediction, CIKM 2022,
    as in FuxiCTR's SDIM. Its attention over the newest behaviours is left out.
    """
    interests = []
    for history in histories(features, params, "sdim"):
        behaviours, mask = history.behaviours, None
        if behaviours is None:
            behaviours, mask = history.values, history.mask
        interests.append(
            sampled_attention(history.target, behaviours, mask, params.signatures, params.bits, params.normalize)
        )
    logits = dense(tower(flat_inputs(features) + interests, mode, params), 1, "logits", bias=params.base_logit())
    return binary_head(features, labels, mode, params, logits)


def sampled_attention(
    target: tf.Tensor,
    history: tf.Tensor | Behaviours,
    mask: tf.Tensor | None = None,
    signatures: int = 16,
    bits: int = 3,
    normalize: bool = False,
) -> tf.Tensor:
    """Averages, over m signatures, the sum of the behaviours with the same signature as the target: float32[B, dim].

        1 / m * sum_i sum_t [s_i(h_t) = s_i(q)] h_t,   s_i(x) = the signs of `bits` random projections of x

    Two vectors at angle a share a signature with probability (1 - a / pi)^bits, which replaces the attention weight.
    The layer has no weights of its own, and the projections are the same in all runs.

    Args:
      target: q, float32[B, dim].
      history: h, float32[B, L, dim]; or `Behaviours`, whose signatures are computed once for each distinct vector.
      mask: float32[B, L], 1 for a behaviour and 0 for padding; None with `Behaviours`.
      signatures: m.
      bits: projections per signature, at most 63.
      normalize: whether the sum of each signature is divided by its length, as with FuxiCTR's `l2_norm`.
    """
    planes = random_planes(bits, target.shape.as_list()[1], signatures)
    if isinstance(history, Behaviours):
        return _sampled_once(target, history, planes, normalize)
    assert mask is not None
    behaviours = history * mask[..., None]
    # A behaviour is on the target's side of a plane if its projection on the normal that points to it is above 0.
    asked, given = tf.stop_gradient(target), tf.stop_gradient(behaviours)
    sides = [tf.matmul(given, plane * tf.sign(tf.matmul(asked, plane))[:, None]) for plane in planes]
    shared = tf.cast(functools.reduce(tf.minimum, sides) > 0, tf.float32)  # [B, L, m]; padding is on no side.
    if not normalize:
        return tf.matmul(tf.reduce_mean(shared, 2)[:, None], behaviours)[:, 0]
    sums = tf.matmul(shared, behaviours, transpose_a=True)
    return tf.reduce_mean(tf.math.l2_normalize(sums, 2), 1)


def _sampled_once(target: tf.Tensor, behaviours: Behaviours, planes: np.ndarray, normalize: bool) -> tf.Tensor:
    """Returns `sampled_attention`, with the signatures of each distinct vector computed once."""
    # The signature of a vector is its side of each of `bits` random hyperplanes. A vector that lies in one of them
    # shares this signature with no vector; therefore a zero vector shares no signature.
    #
    # A word of 64 bits has as many signatures as fit. It has a field for each plane, and another field that marks the
    # signatures in whose planes the vector lies. Bit i of each field belongs to signature i of the word. Two vectors
    # share the signature if their words agree in bit i of all fields.
    bits, _, signatures = planes.shape
    width = min(_WORD // (bits + 1), 31)  # The bits of a field are summed in an int32.
    # The last word is filled with zeros, whose signatures no vector shares.
    planes = np.pad(planes, ((0, 0), (0, 0), (0, -signatures % width)))
    own = behaviours.of_vectors(_words(behaviours.vectors, planes, width, is_target=False))
    asked = behaviours.of_examples(_words(target, planes, width, is_target=True))
    shared = tf.bitwise.invert(_any_field(tf.bitwise.bitwise_xor(own, asked), bits + 1, width))
    count = tf.shape(target)[0]
    if normalize:
        words = tf.unstack(shared, axis=1)
        shifted = [tf.bitwise.right_shift(words[at // width], _constant(at % width)) for at in range(signatures)]
        each = [tf.cast(tf.bitwise.bitwise_and(word, _constant(1)), tf.float32) for word in shifted]
        sums = tf.stack([behaviours.sum(weights, count) for weights in each], 1)
        pooled = tf.reduce_mean(tf.math.l2_normalize(sums, 2), 1)
    else:
        first_fields = tf.bitwise.bitwise_and(shared, _constant((1 << width) - 1))
        weights = tf.reduce_sum(tf.cast(tf.raw_ops.PopulationCount(x=first_fields), tf.float32), 1)
        pooled = behaviours.sum(weights, count) / signatures
    return tf.ensure_shape(pooled, target.shape)


def random_planes(bits: int, dim: int, signatures: int) -> np.ndarray:
    """Returns float32[bits, dim, signatures], the normals of random planes, the same in all runs."""
    if not 1 <= bits <= MOST_BITS:
        raise ValueError(f"{bits} bits of a signature: give 1 to {MOST_BITS}")
    return np.random.default_rng(_SEED).normal(size=(bits, dim, signatures)).astype(np.float32)


def _words(vectors: tf.Tensor, planes: np.ndarray, width: int, is_target: bool) -> tf.Tensor:
    """Returns uint64[n, words], the words of float32[n, dim], for `planes`, float32[bits, dim, words * width]."""
    bits, dim, signatures = planes.shape
    normals = planes.transpose(1, 0, 2).reshape(dim, bits * signatures)
    sides = tf.matmul(tf.stop_gradient(vectors), normals)
    sides = tf.reshape(sides, [-1, bits, signatures // width, width])
    is_above, is_within = sides > 0, tf.reduce_any(tf.equal(sides, 0), 1)
    # If both the target and a behaviour lie in planes of a signature, they must differ in one field.
    first = is_above[:, 0] | is_within if is_target else is_above[:, 0] & ~is_within
    found = [first, *(is_above[:, bit] for bit in range(1, bits)), is_within]
    return functools.reduce(tf.bitwise.bitwise_or, [_field(each, at * width) for at, each in enumerate(found)])


def _field(is_set: tf.Tensor, start: int) -> tf.Tensor:
    """Returns uint64[n, words] with bit start + i set if element i of `is_set`, bool[n, words, width], is true."""
    powers = tf.constant(1 << np.arange(is_set.shape.as_list()[2]), tf.int32)
    bits = tf.reduce_sum(tf.where(is_set, powers, tf.zeros_like(powers)), 2)
    return tf.bitwise.left_shift(tf.cast(bits, tf.uint64), _constant(start))


def _any_field(words: tf.Tensor, fields: int, width: int) -> tf.Tensor:
    """Returns words whose first field has the bits that are set in any field of the given words."""
    while fields > 1:
        fields = math.ceil(fields / 2)
        words = tf.bitwise.bitwise_or(words, tf.bitwise.right_shift(words, _constant(fields * width)))
    return words


def _constant(value: int) -> tf.Tensor:
    return tf.constant(value, tf.uint64)
