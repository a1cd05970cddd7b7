"""Each dense optimizer against Keras's and against its own equation in NumPy."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.estimator import dense_optimizers
from ctr_trainer.settings.optimizers import DENSE_OPTIMIZERS, Adagrad, Adam, AdamW, Ftrl, Lamb, Momentum, Sgd
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1
RATE, STEPS = 0.05, 6
KERNEL = np.array([[0.5, -0.3], [0.2, 0.0]], np.float32)
BIAS = np.array([0.1, -0.7], np.float32)


def _gradients():
    random = np.random.default_rng(3)
    return [[random.normal(size=v.shape).astype(np.float32) for v in (KERNEL, BIAS)] for _ in range(STEPS)]


def _ours(optimizer, keeps=1.0):
    """Returns (kernel, bias) after STEPS updates, each of which follows a multiplication of the kernel by `keeps`."""
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        variables = [tf1.get_variable(name, initializer=v) for name, v in (("kernel", KERNEL), ("bias", BIAS))]
        fed = [tf1.placeholder(tf.float32, v.shape) for v in variables]
        now = step.read_value()
        updates = [
            dense_optimizers.update(optimizer, v, g, tf.constant(RATE), now)
            for v, g in zip(variables, fed, strict=True)
        ]
        with tf.control_dependencies(updates):
            train_op = tf1.assign_add(step, 1)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for gradients in _gradients():
                variables[0].load(keeps * session.run(variables[0]), session)
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
        (Sgd(), lambda: keras.optimizers.SGD(RATE)),
        (Momentum(momentum=0.8), lambda: keras.optimizers.SGD(RATE, momentum=0.8)),
        (Adagrad(initial_accumulator=0.2), lambda: keras.optimizers.Adagrad(RATE, 0.2, epsilon=0.0)),
        (Adam(beta1=0.8, beta2=0.99), lambda: keras.optimizers.Adam(RATE, 0.8, 0.99, epsilon=1e-8)),
        (AdamW(weight_decay=0.2), lambda: _adamw(0.2)),
        (Lamb(weight_decay=0.0), lambda: keras.optimizers.Lamb(RATE, epsilon=1e-8)),
        (
            Ftrl(ftrl_l1=0.3, ftrl_l2=0.1),
            lambda: keras.optimizers.Ftrl(
                RATE, l1_regularization_strength=0.3, l2_regularization_strength=0.1, initial_accumulator_value=0.1
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
    found = _ours(Lamb(weight_decay=0.1))
    for index, (start, decay) in enumerate(((KERNEL, 0.1), (BIAS, 0.0))):
        w, m, v = start.astype(np.float64), 0.0, 0.0
        for count, gradients in enumerate(_gradients(), start=1):
            g = gradients[index].astype(np.float64)
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            r = m / (1 - 0.9**count) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8) + decay * w
            w = w - RATE * np.linalg.norm(w) / np.linalg.norm(r) * r
        np.testing.assert_allclose(found[index], w, atol=2e-6, rtol=0)


def test_ftrl_keeps_its_weights_when_the_rate_falls():
    """Without a gradient nothing moves, whatever the rate."""
    with tf.Graph().as_default():
        rate, gradient = tf1.placeholder(tf.float32, []), tf1.placeholder(tf.float32, BIAS.shape)
        variable = tf1.get_variable("bias", initializer=np.zeros_like(BIAS))
        update = dense_optimizers.update(Ftrl(), variable, gradient, rate, tf.constant(0))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            for _ in range(3):
                session.run(update, {rate: 0.1, gradient: [1.0, -0.5]})
            before = session.run(variable)
            session.run(update, {rate: 0.001, gradient: [0.0, 0.0]})
            np.testing.assert_allclose(session.run(variable), before, rtol=1e-5)
    assert np.all(np.abs(before) > 0.1)


@pytest.mark.parametrize("name", ["sgd", "momentum", "adagrad", "adam"])
def test_weight_decay_takes_a_share_of_kernels_off_before_the_step(name):
    kernel, bias = _ours(DENSE_OPTIMIZERS[name](weight_decay=0.5))
    expected = _ours(DENSE_OPTIMIZERS[name](weight_decay=0.0), keeps=1 - RATE * 0.5)
    np.testing.assert_allclose(kernel, expected[0], atol=2e-6, rtol=0)
    np.testing.assert_array_equal(bias, expected[1])


def test_weight_decay_shrinks_what_ftrl_holds_with_its_penalties_too():
    """A step without a gradient leaves 1 - RATE * decay of each weight that the penalty l1 lets be."""
    optimizer = Ftrl(weight_decay=0.5, ftrl_l1=0.3, ftrl_l2=0.1)
    with tf.Graph().as_default():
        gradient = tf1.placeholder(tf.float32, KERNEL.shape)
        variable = tf1.get_variable("kernel", initializer=np.zeros_like(KERNEL))
        update = dense_optimizers.update(optimizer, variable, gradient, tf.constant(RATE), tf.constant(0))
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(update, {gradient: [[2.0, -1.0], [0.1, 3.0]]})
            before = session.run(variable)
            session.run(update, {gradient: np.zeros_like(KERNEL)})
            np.testing.assert_allclose(session.run(variable), before * (1 - RATE * 0.5), rtol=1e-4)
    assert np.count_nonzero(before) == 3


@pytest.mark.parametrize("name", ["adamw", "ftrl"])
def test_nothing_decays_before_the_gradient_is_there(name):
    """Which comes from the variable as it was."""
    with tf.Graph().as_default() as graph:
        gradient = tf1.placeholder(tf.float32, KERNEL.shape)
        variable = tf1.get_variable("kernel", initializer=KERNEL)
        dense_optimizers.update(
            DENSE_OPTIMIZERS[name](weight_decay=0.5), variable, gradient, tf.constant(RATE), tf.constant(0)
        )
        kinds = {"AssignSubVariableOp": 1, "AssignAddVariableOp": 1 if name == "ftrl" else 0}
        found = [operation for operation in graph.get_operations() if operation.type in kinds]
        assert [operation.type for operation in found].count("AssignAddVariableOp") == kinds["AssignAddVariableOp"]
        assert len(found) == sum(kinds.values())
        for operation in found:
            assert gradient.op in _before(operation)


def _before(operation):
    """Returns all operations that run before an operation."""
    found, left = set(), [operation]
    while left:
        each = left.pop()
        new = {*(tensor.op for tensor in each.inputs), *each.control_inputs} - found
        found |= new
        left += new
    return found


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("adamw", (1 - 0.01 * RATE) ** STEPS),
        # Without a gradient LAMB's direction is the decay alone, which the trust ratio makes as long as the kernel.
        ("lamb", (1 - RATE) ** STEPS),
        ("adam", 1.0),
    ],
)
def test_without_gradients_kernels_shrink_by_default_if_the_optimizer_decays(monkeypatch, name, left):
    monkeypatch.setattr(f"{__name__}._gradients", lambda: [[np.zeros_like(v) for v in (KERNEL, BIAS)]] * STEPS)
    kernel, bias = _ours(DENSE_OPTIMIZERS[name]())
    np.testing.assert_allclose(kernel, KERNEL * left, rtol=1e-5)
    np.testing.assert_array_equal(bias, BIAS)
    np.testing.assert_array_equal(_ours(DENSE_OPTIMIZERS[name](weight_decay=0.0))[0], KERNEL)


def test_a_setting_that_is_no_number_is_refused():
    with pytest.raises(UserError, match="^weight_decay=nan: expected a number"):
        Sgd(weight_decay=float("nan"))
