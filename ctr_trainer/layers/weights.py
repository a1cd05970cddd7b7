"""Trainable matrices."""

import math
import zlib

import tensorflow as tf

tf1 = tf.compat.v1


def glorot(name, shape, fan_in, fan_out):
    """-> a variable with uniform weights in +-sqrt(6 / (fan_in + fan_out)).

    Its first value is a function of the run's seed and of its full name: operations added elsewhere do not change it.

    Args:
      name: within the current variable scope.
      shape: list of int.
      fan_in, fan_out: how many inputs an output adds up, and outputs an input takes part in.

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks, AISTATS 2010.
    """
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    seed = zlib.crc32(f"{tf1.get_variable_scope().name}/{name}".encode())
    return tf1.get_variable(name, shape, initializer=tf1.random_uniform_initializer(-limit, limit, seed=seed))


def zeros(name, shape, fan_in, fan_out):
    """-> a variable of zeros, to stand in the place of `glorot`.

    Args:
      name: within the current variable scope.
      shape: list of int.
      fan_in, fan_out: not read.
    """
    return tf1.get_variable(name, shape, initializer=tf1.zeros_initializer())
