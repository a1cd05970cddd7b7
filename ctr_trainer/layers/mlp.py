"""Stacks of fully connected layers."""

import tensorflow as tf

from ctr_trainer.layers.batch_norm import batch_norm as normalized
from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def dense(inputs, units, name, weights=glorot):
    """`[x_1, ..., x_k] W + b`, computed as `x_1 W_1 + ... + x_k W_k + b`: zero bias.

    A kernel for each input saves the copies that concatenating them, and cutting the gradient again, would cost.

    Args:
      inputs: a float32[B, n_i], or a list of them.
      units: width of the output.
      name: of the variable scope.
      weights: what W starts at, `weights.glorot` or `weights.zeros`.

    Returns:
      float32[B, units].
    """
    inputs = inputs if isinstance(inputs, list | tuple) else [inputs]
    width = sum(x.shape[-1] for x in inputs)
    with tf1.variable_scope(name):
        names = ["kernel"] if len(inputs) == 1 else [f"kernel_{index}" for index in range(len(inputs))]
        kernels = [weights(kernel, [x.shape[-1], units], width, units) for kernel, x in zip(names, inputs, strict=True)]
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    *others, last = (tf.matmul(x, kernel) for x, kernel in zip(inputs, kernels, strict=True))
    return sum(others, tf.nn.bias_add(last, bias))


def mlp(inputs, hidden_units, dropout=0.0, training=False, activation="relu", batch_norm=False, name="mlp"):
    """A layer for each of `hidden_units`, with batch normalization before each activation and dropout behind it.

    Args:
      inputs: a float32[B, n_i], or a list of them that stands for their concatenation.
      hidden_units: width of each layer; at least one.
      dropout: share of activations set to zero while training.
      training: whether dropout applies, and normalization takes the batch's own statistics.
      activation: a function's name in `tf.nn`.
      batch_norm: whether there is normalization, see `batch_norm.batch_norm`.

    Returns:
      float32[B, hidden_units[-1]].
    """
    activate = getattr(tf.nn, activation)
    with tf1.variable_scope(name):
        for index, units in enumerate(hidden_units):
            inputs = dense(inputs, units, f"layer_{index}")
            if batch_norm:
                inputs = normalized(inputs, training, name=f"batch_norm_{index}")
            inputs = activate(inputs)
            if dropout and training:
                inputs = tf.nn.dropout(inputs, rate=dropout)
    return inputs
