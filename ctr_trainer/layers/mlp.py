"""Stacks of fully connected layers."""

import tensorflow as tf

tf1 = tf.compat.v1


def dense(inputs, units, name):
    """`x W + b`: float32[B, n] -> float32[B, units]; Glorot-uniform weights, zero bias."""
    with tf1.variable_scope(name):
        kernel = tf1.get_variable("kernel", [inputs.shape[-1], units], initializer=tf1.glorot_uniform_initializer())
        bias = tf1.get_variable("bias", [units], initializer=tf1.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(inputs, kernel), bias)


def mlp(inputs, hidden_units, dropout=0.0, training=False, name="mlp"):
    """A ReLU layer for each of `hidden_units`, with dropout behind each.

    Args:
      inputs: float32[B, n].
      hidden_units: width of each layer.
      dropout: share of activations set to zero while training.
      training: whether dropout applies.

    Returns:
      float32[B, hidden_units[-1]], or the inputs where there are no layers.
    """
    with tf1.variable_scope(name):
        for index, units in enumerate(hidden_units):
            inputs = tf.nn.relu(dense(inputs, units, f"layer_{index}"))
            if dropout and training:
                inputs = tf.nn.dropout(inputs, rate=dropout)
    return inputs
