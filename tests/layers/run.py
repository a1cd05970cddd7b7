"""Runs a layer on given numbers."""

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def run(layer, *inputs, seed=0):
    """Builds `layer(*inputs)` in a graph of its own, gives every variable random values, and runs it.

    Returns:
      (output, dict of the variables' values by name, list of the gradients of `sum(output * (1, 2, 3, ...))`, one an
      input).
    """
    rng = np.random.default_rng(seed)
    with tf.Graph().as_default():
        tensors = [tf.constant(np.float32(x)) for x in inputs]
        output = layer(*tensors)
        factors = tf.cast(tf.reshape(tf.range(1, tf.size(output) + 1), tf.shape(output)), tf.float32)
        gradients = tf.gradients(output * factors, tensors)
        variables = {v.op.name: v for v in tf1.global_variables()}
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for variable in filter(lambda each: each.dtype.is_floating, variables.values()):
                variable.load(rng.normal(size=variable.shape).astype(np.float32), session)
            return session.run([output, variables, gradients])


def assert_equal(layer, plain, *inputs, rtol=1e-5):
    """Asserts that a layer without variables gives what the plain TensorFlow formula gives, and the same gradients."""
    output, _, gradients = run(layer, *inputs)
    expected, _, expected_gradients = run(plain, *inputs)
    np.testing.assert_allclose(output, expected, rtol=rtol, atol=1e-5)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=rtol, atol=1e-4)


def vectors(*shape, seed=1):
    """Returns float32 random numbers of a shape."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
