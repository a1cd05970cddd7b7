"""Trainable matrices."""

import math
import zlib
from collections.abc import Sequence

import tensorflow as tf

tf1 = tf.compat.v1


def glorot(name: str, shape: Sequence[int], fan_in: int, fan_out: int) -> tf.Variable:
    """Creates a float32 variable of uniform random weights within +-sqrt(6 / (fan_in + fan_out)).

    The initial value depends only on the run's seed and the variable's full name, so operations that are added to the
    graph do not change it. `fan_in` is the number of inputs per output, `fan_out` the number of outputs per input.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, AISTATS 2010.
    """
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    return tf1.get_variable(name, shape, initializer=tf1.random_uniform_initializer(-limit, limit, seed=seed_of(name)))


def zeros(name: str, shape: Sequence[int], fan_in: int, fan_out: int) -> tf.Variable:
    """Creates a float32 variable of zeros, with the arguments of `glorot`.

    Do not use it for a hidden layer, whose units would stay equal to each other.
    """
    return tf1.get_variable(name, shape, initializer=tf1.zeros_initializer())


def seed_of(name: str) -> int:
    """Returns the seed of a variable of the current variable scope, a hash of its full name."""
    return zlib.crc32(f"{tf1.get_variable_scope().name}/{name}".encode())
