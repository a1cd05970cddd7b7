"""Trainable matrices."""

import math
import zlib
from collections.abc import Sequence

import tensorflow as tf

tf1 = tf.compat.v1


def glorot(name: str, shape: Sequence[int], fan_in: int, fan_out: int) -> tf.Variable:
    """Creates a variable of uniform random weights within +-sqrt(6 / (fan_in + fan_out)).

    The initial value depends only on the run's seed and the variable's full name, so operations that are added to the
    graph do not change it.

    Args:
      name: name of the variable, within the current variable scope.
      shape: list of int.
      fan_in: number of inputs per output.
      fan_out: number of outputs per input.

    Returns:
      variable, float32 of that shape.

    Advice: use it for all matrices; `zeros` is for the weights of single numbers, such as in `linear`.

    Example:
      >>> glorot("w", [8, 4], 8, 4).shape
      TensorShape([8, 4])

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, AISTATS 2010.
    """
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    return tf1.get_variable(name, shape, initializer=tf1.random_uniform_initializer(-limit, limit, seed=_seed(name)))


def signs(name: str, shape: Sequence[int]) -> tf.Variable:
    """Creates a variable of random signs, -1 or 1, that depend only on the run's seed and the variable's full name.

    Args:
      name: name of the variable, within the current variable scope.
      shape: list of int.

    Returns:
      variable, float32 of that shape.

    Advice: use it for the factors in which the members of an ensemble differ.

    Example:
      >>> signs("r", [3, 8]).shape
      TensorShape([3, 8])
    """
    uniform = tf1.random_uniform_initializer(-1.0, 1.0, seed=_seed(name))
    return tf1.get_variable(name, initializer=lambda: tf.where(uniform(shape) < 0, -1.0, 1.0))


def zeros(name: str, shape: Sequence[int], fan_in: int, fan_out: int) -> tf.Variable:
    """Creates a variable of zeros, with the same arguments as `glorot`.

    Args:
      name: name of the variable, within the current variable scope.
      shape: list of int.
      fan_in, fan_out: ignored.

    Returns:
      variable, float32 of that shape.

    Advice: do not use it for a hidden layer, whose units would stay equal to each other.

    Example:
      >>> zeros("v", [8, 1], 8, 1).shape
      TensorShape([8, 1])
    """
    return tf1.get_variable(name, shape, initializer=tf1.zeros_initializer())


def _seed(name: str) -> int:
    return zlib.crc32(f"{tf1.get_variable_scope().name}/{name}".encode())
