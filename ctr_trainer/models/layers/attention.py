"""Attention over a history: attention to a target, sampled attention, and the encoder block of a transformer."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from ctr_trainer.features.behaviours import Behaviours
from ctr_trainer.models.layers.dice import dice, prelu
from ctr_trainer.models.layers.dropout import dropout as dropped
from ctr_trainer.models.layers.masks import Present, masked_softmax
from ctr_trainer.models.layers.mlp import dense
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.layers.signatures import SharedSignatures, random_planes
from ctr_trainer.models.layers.weights import glorot

tf1 = tf.compat.v1

ACTIVATIONS = ("dice", "prelu", "relu", "sigmoid")


def attention_pooling(
    target: tf.Tensor,
    history: tf.Tensor,
    mask: tf.Tensor,
    hidden_units: Sequence[int] = (36,),
    activation: str = "dice",
    softmax: bool = False,
    training: bool = False,
    name: str = "attention",
) -> tf.Tensor:
    """Pools a history: `sum_t a_t h_t`, where a_t is the relevance of behaviour t for the target.

        a_t = mask_t * mlp([q, h_t, q - h_t, q * h_t])

    Without `softmax` the weights are not normalised, so that a strong interest gives a long vector. For an empty
    history the result is zeros.

    Args:
      target: q, float32[B, dim].
      history: h, float32[B, L, dim].
      mask: float32[B, L], 1 for a behaviour and 0 for padding.
      hidden_units: widths of the activation unit's hidden layers; at least one.
      activation: one of `ACTIVATIONS`, applied after each hidden layer.
      softmax: whether the weights are normalised over the history.
      training: whether this graph trains; if so, Dice uses the statistics of the batch.
      name: name of the variable scope.

    Returns:
      float32[B, dim].

    Advice: use it if only part of a history is relevant for the target. If all of it is, the much cheaper
    `masked_mean` is sufficient.

    Example:
      >>> history, mask = tf.ones([2, 5, 4]), tf.ones([2, 5])
      >>> attention_pooling(tf.ones([2, 4]), history, mask, activation="relu").shape
      TensorShape([2, 4])

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 4.3.
    """
    present = Present.of(mask)
    behaviours = present.pack(history)
    with tf1.variable_scope(name):
        hidden = _pairs(target, behaviours, present, hidden_units[0])
        for index in range(len(hidden_units)):
            if index:
                hidden = dense(hidden, hidden_units[index], f"layer_{index}")
            if activation == "dice":
                hidden = dice(hidden, training=training, name=f"activation_{index}", present=present)
            else:
                hidden = _activate(hidden, activation, f"activation_{index}")
        scores = dense(hidden, 1, "score")
    weights = present.softmax(scores) if softmax else scores
    return tf.ensure_shape(present.sum(behaviours * weights), target.shape)


def _pairs(target: tf.Tensor, behaviours: tf.Tensor, present: Present, units: int) -> tf.Tensor:
    """`[q, h, q - h, q * h] W + b` of each of N behaviours, float32[N, units].

    This is computed as `q (W_0 + W_2) + h (W_1 - W_2) + (q * h) W_3 + b`, which takes half the products and does not
    concatenate a copy of the target with each behaviour.
    """
    dim = behaviours.shape.as_list()[1]
    with tf1.variable_scope("layer_0"):
        kernel = glorot("kernel", [4, dim, units], 4 * dim, units)
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    of_target, of_history, of_difference, of_product = tf.unstack(kernel)
    by_behaviour = tf.matmul(behaviours, of_history - of_difference)
    by_behaviour += tf.matmul(behaviours * present.repeat(target), of_product)
    by_example = tf.nn.bias_add(tf.matmul(target, of_target + of_difference), bias)
    return by_behaviour + present.repeat(by_example)


def _activate(inputs: tf.Tensor, activation: str, name: str) -> tf.Tensor:
    if activation == "prelu":
        return prelu(inputs, name)
    return {"relu": tf.nn.relu, "sigmoid": tf.sigmoid}[activation](inputs)


def sampled_attention(
    target: tf.Tensor,
    history: tf.Tensor | Behaviours,
    mask: tf.Tensor | None = None,
    signatures: int = 16,
    bits: int = 3,
    normalize: bool = False,
) -> tf.Tensor:
    """Averages, over m signatures, the sum of the behaviours with the same signature as the target.

        1 / m * sum_i sum_t [s_i(h_t) = s_i(q)] h_t,   s_i(x) = the signs of `bits` random projections of x

    Two vectors at angle a share a signature with probability (1 - a / pi)^bits, which replaces the attention weight.
    The layer has no weights of its own, and the projections are the same in all runs.

    Args:
      target: q, float32[B, dim].
      history: h, float32[B, L, dim]; or `Behaviours`, whose signatures are computed once for each distinct vector.
      mask: float32[B, L], 1 for a behaviour and 0 for padding; None with `Behaviours`.
      signatures: m.
      bits: projections per signature, at most 63; with more projections, fewer behaviours match the target.
      normalize: whether the sum of each signature is divided by its length.

    Returns:
      float32[B, dim]; zeros for an empty history.

    Advice: use it for histories of several hundred behaviours; `attention_pooling` is more accurate for short ones.

    Example:
      >>> sampled_attention(tf.ones([2, 4]), tf.ones([2, 1000, 4]), tf.ones([2, 1000])).shape
      TensorShape([2, 4])

    Source: Cao et al., Sampling Is All You Need on Modeling Long-Term User Behaviors for CTR Prediction, CIKM 2022,
    as in FuxiCTR's SDIM, whose sums are divided by their lengths with `l2_norm`.
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
    shared, count = SharedSignatures(target, behaviours, planes), tf.shape(target)[0]
    if normalize:
        sums = tf.stack([behaviours.sum(weights, count) for weights in shared.each()], 1)
        pooled = tf.reduce_mean(tf.math.l2_normalize(sums, 2), 1)
    else:
        pooled = behaviours.sum(shared.count(), count) / planes.shape[2]
    return tf.ensure_shape(pooled, target.shape)


def transformer_block(
    inputs: tf.Tensor,
    mask: tf.Tensor,
    heads: int,
    feed_forward_units: int,
    dropout: float = 0.0,
    training: bool = False,
    name: str = "transformer",
) -> tf.Tensor:
    """Applies self-attention and a feed-forward network, each followed by a residual connection and a layer norm.

        y = norm(x + dropout(attention(x)))
        z = norm(y + dropout(leaky_relu(y W_1 + b_1) W_2 + b_2))

    Args:
      inputs: x, float32[B, L, n].
      mask: float32[B, L]; no position attends to positions with mask 0, where the outputs are 0.
      heads: number of attention heads; divides n.
      feed_forward_units: width of the hidden layer.
      dropout: fraction of the outputs of the attention and of the network that are set to zero during training.
      training: whether this graph trains; if so, dropout applies.
      name: name of the variable scope.

    Returns:
      float32[B, L, n].

    Advice: one block is enough for histories of tens of behaviours. Add positional embeddings to the inputs, because
    attention ignores the order.

    Example:
      >>> transformer_block(tf.ones([2, 5, 4]), tf.ones([2, 5]), heads=2, feed_forward_units=16).shape
      TensorShape([2, 5, 4])

    Source: Vaswani et al., Attention Is All You Need, NIPS 2017, section 3; as in Chen et al., Behavior Sequence
    Transformer for E-commerce Recommendation in Alibaba, DLP-KDD 2019, section 2.2.
    """
    width, present = inputs.shape.as_list()[2], Present.of(mask)
    rate, values = dropout if training else 0.0, present.pack(inputs)
    with tf1.variable_scope(name):
        attended = _self_attention(values, present, mask, heads)
        middle = layer_norm(values + dropped(attended, rate), name="attention_norm")
        hidden = dense(middle, feed_forward_units, "hidden")
        output = dense(tf.nn.leaky_relu(hidden), width, "output")
        return present.unpack(layer_norm(middle + dropped(output, rate), name="output_norm"))


def self_attention(inputs: tf.Tensor, mask: tf.Tensor, heads: int, name: str = "attention") -> tf.Tensor:
    """Computes `concat_h(softmax(Q_h K_h' / sqrt(n / heads)) V_h) W + b`; positions attend to positions with mask 1.

    Args:
      inputs: float32[B, L, n].
      mask: float32[B, L], 0 or 1.
      heads: number of attention heads; divides n.
      name: name of the variable scope.

    Returns:
      float32[B, L, n]; 0 at positions with mask 0.

    Advice: use `transformer_block`, unless your model adds residuals and norms itself.

    Example:
      >>> self_attention(tf.ones([2, 5, 4]), tf.ones([2, 5]), heads=2).shape
      TensorShape([2, 5, 4])
    """
    present = Present.of(mask)
    return present.unpack(_self_attention(present.pack(inputs), present, mask, heads, name))


def _self_attention(
    values: tf.Tensor, present: Present, mask: tf.Tensor, heads: int, name: str = "attention"
) -> tf.Tensor:
    """Computes `self_attention` of float32[N, n], the values without padding."""
    width = values.shape.as_list()[1]
    size = width // heads
    with tf1.variable_scope(name):
        # One product for queries, keys and values of all heads.
        projected = present.unpack(dense(values, 3 * width, "projection"))
        by_head = tf.transpose(tf.reshape(projected, [-1, present.length, 3 * heads, size]), [0, 2, 1, 3])
        queries, keys, contents = tf.split(by_head, 3, 1)
        scores = tf.matmul(queries, keys, transpose_b=True) * (1.0 / math.sqrt(size))
        weights = masked_softmax(scores, mask[:, None, None])
        joined = tf.transpose(tf.matmul(weights, contents), [0, 2, 1, 3])
        return dense(present.pack(tf.reshape(joined, [-1, present.length, width])), width, "output")
