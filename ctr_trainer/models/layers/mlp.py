"""Stacks of fully connected layers, and ensembles of stacks whose members share their matrices."""

from collections.abc import Callable, Sequence

import tensorflow as tf

from ctr_trainer.features.ranked import Columns, product
from ctr_trainer.models.layers.dropout import dropout as dropped
from ctr_trainer.models.layers.normalization import batch_norm as normalized
from ctr_trainer.models.layers.weights import glorot, signs, zeros

tf1 = tf.compat.v1


def dense(
    inputs: Columns | Sequence[Columns],
    units: int,
    name: str,
    weights: Callable[..., tf.Variable] = glorot,
    bias: float = 0.0,
) -> tf.Tensor:
    """Computes `[x_1, ..., x_k] W + b` as `x_1 W_1 + ... + x_k W_k + b`.

    A kernel per input saves the copies of concatenating the inputs and of splitting their gradient.

    Args:
      inputs: x, float32[B, n_i], or a list of such tensors.
      units: width of the output.
      name: name of the variable scope.
      weights: function that creates W: `weights.glorot` or `weights.zeros`.
      bias: initial value of all elements of b.

    Returns:
      float32[B, units].

    Advice: pass a list of inputs, not their concatenation.

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
    """Stacks fully connected layers, with optional batch normalization before and dropout after each activation.

    Args:
      inputs: float32[B, n_i], or a list of such tensors, which is treated as their concatenation.
      hidden_units: width of each layer; at least one.
      dropout: fraction of the activations that are set to zero during training.
      training: whether this graph trains; if so, dropout applies, and normalization uses the statistics of the batch.
      activation: name of a function in `tf.nn`.
      batch_norm: whether the inputs of each activation are normalised, see `normalization.batch_norm`.
      name: name of the variable scope.
      momentum, epsilon: see `normalization.batch_norm`.

    Returns:
      float32[B, hidden_units[-1]].

    Advice: use two or three layers of decreasing width; with much data, widen them before you add a layer.

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
            inputs = dropped(inputs, dropout * training)
    return inputs


def batch_ensemble(
    inputs: tf.Tensor,
    hidden_units: Sequence[int],
    members: int,
    dropout: float = 0.0,
    training: bool = False,
    activation: str = "relu",
    name: str = "ensemble",
) -> tf.Tensor:
    """Computes `members` multilayer perceptrons that share their matrices and differ only in vectors.

        x_k = activation(((x_k ∘ r_k) W) ∘ s_k + b_k),   one W for all members k

    The r_k of the first layer are random signs, so that the members have different inputs from the first step. All
    other vectors start at 1, and the biases at 0.

    Args:
      inputs: x, float32[B, n], the inputs of all members.
      hidden_units: width of each layer; at least one.
      members: number of members, at least 1.
      dropout: fraction of the activations that are set to zero during training.
      training: whether this graph trains; if so, dropout applies.
      activation: name of a function in `tf.nn`.
      name: name of the variable scope.

    Returns:
      float32[B, members, hidden_units[-1]].

    Advice: use 8 to 32 members; the layers cost `members` times as much as the layers of one perceptron.

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
            x = dropped(x, dropout * training)
    return x


def _ones(name: str, shape: Sequence[int]) -> tf.Variable:
    return tf1.get_variable(name, shape, initializer=tf1.ones_initializer())
