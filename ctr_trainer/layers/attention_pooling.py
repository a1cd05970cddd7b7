"""Pools a history into one vector, each behaviour weighted by a target."""

from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.layers.dice import dice, prelu
from ctr_trainer.layers.masks import masked_softmax
from ctr_trainer.layers.mlp import dense
from ctr_trainer.layers.weights import glorot

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
    """Pools a history: `sum_t a_t h_t`, where a_t says how much behaviour t tells about the target.

        a_t = mask_t * mlp([q, h_t, q - h_t, q * h_t])

    Without `softmax` the weights are not normalised, so that a strong interest gives a long vector. An empty history
    gives zeros.

    Args:
      target: q, float32[B, dim].
      history: h, float32[B, L, dim].
      mask: float32[B, L], 1 for a behaviour and 0 for padding.
      hidden_units: widths of the activation unit's hidden layers; at least one.
      activation: one of `ACTIVATIONS`, applied behind each hidden layer.
      softmax: whether the weights are normalised over the history.
      training: whether this graph trains; Dice then takes the batch's own statistics.
      name: of the variable scope.

    Returns:
      float32[B, dim].

    Advice: take it for histories that bear on the target only in part; `masked_mean` does where all of it
    counts, and is far cheaper.

    Example:
      >>> history, mask = tf.ones([2, 5, 4]), tf.ones([2, 5])
      >>> attention_pooling(tf.ones([2, 4]), history, mask, activation="relu").shape
      TensorShape([2, 4])

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 4.3.
    """
    length = history.shape.as_list()[1]
    with tf1.variable_scope(name):
        hidden = _activate(_pairs(target, history, hidden_units[0]), mask, activation, training, "activation_0")
        for index, units in enumerate(hidden_units[1:], 1):
            flat = dense(tf.reshape(hidden, [-1, hidden.shape.as_list()[-1]]), units, f"layer_{index}")
            hidden = _activate(tf.reshape(flat, [-1, length, units]), mask, activation, training, f"activation_{index}")
        scores = tf.reshape(dense(tf.reshape(hidden, [-1, hidden.shape.as_list()[-1]]), 1, "score"), [-1, length])
    weights = masked_softmax(scores, mask) if softmax else scores * mask
    return tf.reduce_sum(history * weights[..., None], 1)


def _pairs(target: tf.Tensor, history: tf.Tensor, units: int) -> tf.Tensor:
    """`[q, h, q - h, q * h] W + b` of each behaviour, float32[B, L, units].

    Computed as `q (W_0 + W_2) + h (W_1 - W_2) + (q * h) W_3 + b`: half the products, and the wide concatenation, a copy
    of the target for each behaviour, is never made.
    """
    length, dim = history.shape.as_list()[1:]
    with tf1.variable_scope("layer_0"):
        kernel = glorot("kernel", [4, dim, units], 4 * dim, units)
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    of_target, of_history, of_difference, of_product = tf.unstack(kernel)
    product = tf.reshape(history * target[:, None], [-1, dim])
    by_behaviour = tf.matmul(tf.reshape(history, [-1, dim]), of_history - of_difference)
    by_behaviour += tf.matmul(product, of_product)
    by_example = tf.nn.bias_add(tf.matmul(target, of_target + of_difference), bias)
    return tf.reshape(by_behaviour, [-1, length, units]) + by_example[:, None]


def _activate(inputs: tf.Tensor, mask: tf.Tensor, activation: str, training: bool, name: str) -> tf.Tensor:
    if activation == "dice":
        return dice(inputs, mask, training, name=name)
    if activation == "prelu":
        return prelu(inputs, name)
    return {"relu": tf.nn.relu, "sigmoid": tf.sigmoid}[activation](inputs)
