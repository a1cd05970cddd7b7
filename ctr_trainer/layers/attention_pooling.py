"""Pools a history into one vector, each behaviour weighted by a target."""

from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.layers.dice import dice, prelu
from ctr_trainer.layers.masks import Present
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
      name: name of the variable scope.

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

    Computed as `q (W_0 + W_2) + h (W_1 - W_2) + (q * h) W_3 + b`: half the products, and the wide concatenation, a copy
    of the target for each behaviour, is never made.
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
