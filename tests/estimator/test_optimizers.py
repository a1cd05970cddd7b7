"""Each dense optimizer against Keras's and against its own equation in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.errors import UserError
from ctr_trainer.estimator.optimizers import DenseOptimizer

tf1 = tf.compat.v1
RATE, STEPS = 0.05, 6
KERNEL = np.array([[0.5, -0.3], [0.2, 0.0]], np.float32)
BIAS = np.array([0.1, -0.7], np.float32)


def _gradients():
    random = np.random.default_rng(3)
    return [[random.normal(size=v.shape).astype(np.float32) for v in (KERNEL, BIAS)] for _ in range(STEPS)]


def _ours(optimizer):
    """-> (kernel, bias) after STEPS updates."""
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        variables = [tf1.get_variable(name, initializer=v) for name, v in (("kernel", KERNEL), ("bias", BIAS))]
        fed = [tf1.placeholder(tf.float32, v.shape) for v in variables]
        now = step.read_value()
        updates = [optimizer.update(v, g, tf.constant(RATE), now) for v, g in zip(variables, fed, strict=True)]
        with tf.control_dependencies(updates):
            train_op = tf1.assign_add(step, 1)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for gradients in _gradients():
                session.run(train_op, dict(zip(fed, gradients, strict=True)))
            return session.run(variables)


def _keras(optimizer):
    variables = [keras.Variable(KERNEL, name="kernel"), keras.Variable(BIAS, name="bias")]
    optimizer.build(variables)
    for gradients in _gradients():
        optimizer.apply([tf.constant(g) for g in gradients], variables)
    return [v.numpy() for v in variables]


def _adamw(decay):
    optimizer = keras.optimizers.AdamW(RATE, weight_decay=decay, epsilon=1e-8)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (DenseOptimizer("sgd"), lambda: keras.optimizers.SGD(RATE)),
        (DenseOptimizer("momentum", momentum=0.8), lambda: keras.optimizers.SGD(RATE, momentum=0.8)),
        (DenseOptimizer("adagrad", initial_accumulator=0.2), lambda: keras.optimizers.Adagrad(RATE, 0.2, epsilon=0.0)),
        (DenseOptimizer("adam", beta1=0.8, beta2=0.99), lambda: keras.optimizers.Adam(RATE, 0.8, 0.99, epsilon=1e-8)),
        (DenseOptimizer("adamw", weight_decay=0.2), lambda: _adamw(0.2)),
        (DenseOptimizer("lamb", weight_decay=0.0), lambda: keras.optimizers.Lamb(RATE, epsilon=1e-8)),
        (
            DenseOptimizer("ftrl", ftrl_l1=0.02, ftrl_l2=0.1),
            lambda: keras.optimizers.Ftrl(
                RATE, l1_regularization_strength=0.02, l2_regularization_strength=0.1, initial_accumulator_value=0.1
            ),
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_equals_keras(ours, theirs):
    for found, expected in zip(_ours(ours), _keras(theirs()), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-6, rtol=0)


def test_lamb_with_decay_equals_its_equation():
    """Keras decays apart from the trust ratio; the paper, within it. The bias does not decay."""
    found = _ours(DenseOptimizer("lamb", weight_decay=0.1))
    for index, (start, decay) in enumerate(((KERNEL, 0.1), (BIAS, 0.0))):
        w, m, v = start.astype(np.float64), 0.0, 0.0
        for count, gradients in enumerate(_gradients(), start=1):
            g = gradients[index].astype(np.float64)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            r = m / (1 - 0.9**count) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8) + decay * w
            w = w - RATE * np.linalg.norm(w) / np.linalg.norm(r) * r
        np.testing.assert_allclose(found[index], w, atol=2e-6, rtol=0)


def test_ftrl_equals_its_equation():
    found = _ours(DenseOptimizer("ftrl", ftrl_l1=0.3, ftrl_l2=0.1))
    w, z, n = KERNEL.astype(np.float64), 0.0, 0.1
    for gradients in _gradients():
        g = gradients[0].astype(np.float64)
        z = z + g - (np.sqrt(n + g * g) - np.sqrt(n)) / RATE * w
        n = n + g * g
        w = np.where(np.abs(z) > 0.3, -(z - np.sign(z) * 0.3) / (np.sqrt(n) / RATE + 2 * 0.1), 0.0)
    np.testing.assert_allclose(found[0], w, atol=2e-6, rtol=0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(name="adamm"), "choose one of sgd, momentum"),
        (dict(name="sgd", momentum=0.5), "has no momentum, which is set to 0.5"),
        (dict(name="adam", weight_decay=0.1), "it has beta1, beta2, epsilon"),
        (dict(name="momentum", momentum=1.0), "must be at least 0 and below 1"),
        (dict(name="adagrad", initial_accumulator=0.0), "must be above 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        DenseOptimizer(**settings)
