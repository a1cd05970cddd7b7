"""Fully connected layers of an ensemble whose members share their matrices."""

from collections.abc import Sequence

import tensorflow as tf

from ctr_trainer.layers.weights import glorot, signs, zeros

tf1 = tf.compat.v1


def batch_ensemble(
    inputs: tf.Tensor,
    hidden_units: Sequence[int],
    members: int,
    dropout: float = 0.0,
    training: bool = False,
    activation: str = "relu",
    name: str = "ensemble",
) -> tf.Tensor:
    """Computes `members` multilayer perceptrons that differ by vectors only.

        x_k = activation(((x_k ∘ r_k) W) ∘ s_k + b_k),   one W for all members k

    The r_k of the first layer are random signs, so that the members see different inputs from the first step on. All
    other vectors begin at 1, and the biases at 0.

    Args:
      inputs: x, float32[B, n]; each member has the same inputs.
      hidden_units: width of each layer; at least one.
      members: number of members, at least 1.
      dropout: fraction of the activations that are set to zero while training.
      training: whether this graph trains: then dropout applies.
      activation: name of a function in `tf.nn`.
      name: name of the variable scope.

    Returns:
      float32[B, members, hidden_units[-1]].

    Advice: 8 to 32 members; the layers cost `members` times as much as the layers of one perceptron.

    Example:
      >>> batch_ensemble(tf.ones([2, 8]), (16, 4), members=3).shape
      TensorShape([2, 3, 4])

    Source: Wen et al., BatchEnsemble: An Alternative Approach to Efficient Ensemble and Lifelong Learning, ICLR 2020,
    section 3; with the initial values of Gorishniy et al., TabM, ICLR 2025, section 3.3.
    """
    activate = getattr(tf.nn, activation)
    x = inputs[:, tf.newaxis, :]
    with tf1.variable_scope(name):
        for index, units in enumerate(hidden_units):
            width = x.shape.as_list()[2]
            with tf1.variable_scope(f"layer_{index}"):
                scale_in = signs("scale_in", [members, width]) if index == 0 else _ones("scale_in", [members, width])
                kernel = glorot("kernel", [width, units], width, units)
                scale_out = _ones("scale_out", [members, units])
                bias = zeros("bias", [members, units], 1, 1)
            product = tf.reshape(tf.matmul(tf.reshape(x * scale_in, [-1, width]), kernel), [-1, members, units])
            x = activate(product * scale_out + bias)
            if dropout and training:
                x = tf.nn.dropout(x, rate=dropout)
    return x


def _ones(name: str, shape: Sequence[int]) -> tf.Variable:
    return tf1.get_variable(name, shape, initializer=tf1.ones_initializer())
