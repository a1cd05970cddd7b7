"""Runs a layer on arrays."""

import zlib

import numpy as np
import tensorflow as tf

tf1 = tf.compat.v1


def run(make, *arrays):
    """Returns (outputs of `make(*placeholders)`, dict of variable name -> value).

    Each trainable variable has random values by its name; one with more rows begins with the same ones.
    """
    with tf.Graph().as_default():
        inputs = [tf1.placeholder(tf.float32, np.shape(a)) for a in arrays]
        outputs = make(*inputs)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for variable in tf1.trainable_variables():
                rng = np.random.default_rng(zlib.crc32(variable.op.name.encode()))
                variable.load(0.5 * rng.normal(size=variable.shape).astype(np.float32), session)
            values = {v.op.name: session.run(v) for v in tf1.global_variables()}
            return session.run(outputs, dict(zip(inputs, arrays, strict=True))), values


def with_gradients(layer):
    """Returns f(*inputs) -> (output, gradients of `sum(output * (1, 2, 3, ...))`, one an input)."""

    def make(*inputs):
        output = layer(*inputs)
        factors = tf.cast(tf.reshape(tf.range(1, tf.size(output) + 1), tf.shape(output)), tf.float32)
        return output, tf.gradients(output * factors, inputs)

    return make


def assert_equal(layer, plain, *inputs, rtol=1e-5):
    """Asserts that a layer gives what the plain TensorFlow formula gives, and the same gradients."""
    (output, gradients), _ = run(with_gradients(layer), *inputs)
    (expected, expected_gradients), _ = run(with_gradients(plain), *inputs)
    np.testing.assert_allclose(output, expected, rtol=rtol, atol=1e-5)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, other, rtol=rtol, atol=1e-4)


def check_gradients(make, *arrays, seed=3, tolerance=2e-3):
    """Compares the gradients of `sum(make(...) * c)` for a random c with numeric differentiation, in float32."""
    with tf.Graph().as_default():
        tf1.set_random_seed(seed)
        inputs = [tf1.placeholder(tf.float32, np.shape(a)) for a in arrays]
        output = make(*inputs)
        rng = np.random.default_rng(seed)
        loss = tf.reduce_sum(output * rng.normal(size=output.shape).astype(np.float32))
        analytic = tf.gradients(loss, inputs)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())

            def value(arrays):
                return float(session.run(loss, dict(zip(inputs, arrays, strict=True))))

            found = session.run(analytic, dict(zip(inputs, arrays, strict=True)))
            for number, array in enumerate(arrays):
                for place in np.ndindex(array.shape):
                    step = np.zeros_like(array)
                    step[place] = 1e-2
                    there, back = ([*arrays[:number], array + sign * step, *arrays[number + 1 :]] for sign in (1, -1))
                    numeric = (value(there) - value(back)) / 2e-2
                    assert abs(numeric - found[number][place]) < tolerance, (number, place, numeric, found[number])


def vectors(*shape, seed=1):
    """Returns float32 random numbers of a shape."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)
