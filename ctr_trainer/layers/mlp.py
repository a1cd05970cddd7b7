"""Stacks of fully connected layers."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns, product
from ctr_trainer.layers.batch_norm import batch_norm as normalized
from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def dense(
    inputs: Columns | Sequence[Columns],
    units: int,
    name: str,
    weights: Callable[..., tf.Variable] = glorot,
    bias: float = 0.0,
) -> tf.Tensor:
    """Computes `[x_1, ..., x_k] W + b` as `x_1 W_1 + ... + x_k W_k + b`.

    With a kernel for each input, the inputs need not be concatenated, nor the gradient cut again: this saves copies.

    Args:
      inputs: x, a float32[B, n_i], or a list of them.
      units: width of the output.
      name: name of the variable scope.
      weights: makes W: `weights.glorot` or `weights.zeros`.
      bias: the number that all of b start at.

    Returns:
      float32[B, units].

    Advice: give it a list of inputs, not their concatenation.

    Example:
      >>> dense([tf.ones([2, 3]), tf.ones([2, 5])], 4, "layer").shape
      TensorShape([2, 4])
    """
    inputs = inputs if isinstance(inputs, list | tuple) else [inputs]
    widths = [x.shape.as_list()[-1] for x in inputs]
    with tf1.variable_scope(name):
        names = ["kernel"] if len(inputs) == 1 else [f"kernel_{index}" for index in range(len(inputs))]
        kernels = [weights(name, [width, units], sum(widths), units) for name, width in zip(names, widths, strict=True)]
        b = tf1.get_variable("bias", [units], initializer=tf1.constant_initializer(bias))
    *others, last = (product(x, kernel) for x, kernel in zip(inputs, kernels, strict=True))
    return sum(others, tf.nn.bias_add(last, b))


def mlp(
    inputs: Columns | Sequence[Columns],
    hidden_units: Sequence[int],
    dropout: float = 0.0,
    training: bool = False,
    activation: str = "relu",
    batch_norm: bool = False,
    name: str = "mlp",
    momentum: float | None = None,
    epsilon: float = 1e-3,
) -> tf.Tensor:
    """Stacks fully connected layers, with batch normalization before each activation and dropout behind it.

    Args:
      inputs: a float32[B, n_i], or a list of them that stands for their concatenation.
      hidden_units: width of each layer; at least one.
      dropout: fraction of the activations that are set to zero while training.
      training: whether this graph trains: then dropout applies, and normalization takes the batch's own statistics.
      activation: name of a function in `tf.nn`.
      batch_norm: whether the inputs of each activation are normalised, see `batch_norm.batch_norm`.
      name: name of the variable scope.
      momentum, epsilon: see `batch_norm.batch_norm`.

    Returns:
      float32[B, hidden_units[-1]].

    Advice: two or three layers of falling width; with much data widen them before you add one.

    Example:
      >>> mlp(tf.ones([2, 8]), (16, 4), dropout=0.1, training=True).shape
      TensorShape([2, 4])
    """
    activate = getattr(tf.nn, activation)
    with tf1.variable_scope(name):
        for index, units in enumerate(hidden_units):
            inputs = dense(inputs, units, f"layer_{index}")
            if batch_norm:
                inputs = normalized(inputs, training, momentum, epsilon, name=f"batch_norm_{index}")
            inputs = activate(inputs)
            if dropout and training:
                inputs = tf.nn.dropout(inputs, rate=dropout)
    return inputs
