"""Fully connected layers, their stacks, and gates."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns, product
from ctr_trainer.models.layers.weights import glorot

tf1 = tf.compat.v1


def dense(
    inputs: Columns | Sequence[Columns],
    units: int,
    name: str,
    weights: Callable[..., tf.Variable] = glorot,
    bias: float = 0.0,
) -> tf.Tensor:
    """Computes `[x_1, ..., x_k] W + b`, float32[B, units], as `x_1 W_1 + ... + x_k W_k + b`.

    A kernel per input saves the copies of concatenating the inputs and of splitting their gradient: pass a list of
    inputs, not their concatenation.

    Args:
      inputs: x, float32[B, n_i], or a list of such tensors.
      units: width of the output.
      name: name of the variable scope.
      weights: function that creates W: `weights.glorot` or `weights.zeros`.
      bias: initial value of all elements of b.
    """
    inputs = inputs if isinstance(inputs, list | tuple) else [inputs]
    widths = [x.shape.as_list()[-1] for x in inputs]
    with tf1.variable_scope(name):
        names = ["kernel"] if len(inputs) == 1 else [f"kernel_{index}" for index in range(len(inputs))]
        kernels = [weights(name, [width, units], sum(widths), units) for name, width in zip(names, widths, strict=True)]
        b = tf1.get_variable("bias", [units], initializer=tf1.constant_initializer(bias))
    *others, last = (product(x, kernel) for x, kernel in zip(inputs, kernels, strict=True))
    return sum(others, tf.nn.bias_add(last, b))


def dense_per_token(inputs: tf.Tensor, units: int, name: str) -> tf.Tensor:
    """Computes `x_t W_t + b_t`, float32[T, B, units]: each token of x, float32[T, B, n], has a matrix of its own."""
    tokens, _, width = inputs.shape.as_list()
    with tf1.variable_scope(name):
        kernel = glorot("kernel", [tokens, width, units], width, units)
        bias = tf1.get_variable("bias", [tokens, 1, units], initializer=tf1.zeros_initializer())
    return tf.matmul(inputs, kernel) + bias


def mlp(inputs: Columns | Sequence[Columns], hidden_units: Sequence[int], name: str = "mlp") -> tf.Tensor:
    """Stacks fully connected layers with ReLU: float32[B, hidden_units[-1]].

    `inputs` is float32[B, n_i] or a list of such tensors, which is treated as their concatenation. There is a layer for
    each of `hidden_units`, at least one.
    """
    with tf1.variable_scope(name):
        for index, units in enumerate(hidden_units):
            inputs = tf.nn.relu(dense(inputs, units, f"layer_{index}"))
    return inputs


def gated(inputs: tf.Tensor, context: tf.Tensor | Sequence[tf.Tensor], units: int, name: str) -> tf.Tensor:
    """Computes `2 sigmoid(W_2 relu(W_1 c + b_1) + b_2) * x`: weights the features by a context.

    `inputs` is x and has the shape of the result, float32[B, n]. `context` is c, float32[B, m] or a list of such
    tensors; float32[1, m] gates all examples alike. The hidden layer has `units` units.

    Source: Mao et al., FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction, AAAI 2023,
    "Stream-specific feature selection".
    """
    with tf1.variable_scope(name):
        hidden = tf.nn.relu(dense(context, units, "hidden"))
        return 2.0 * tf.sigmoid(dense(hidden, inputs.shape.as_list()[1], "gate")) * inputs
