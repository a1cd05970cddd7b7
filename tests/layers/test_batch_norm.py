import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.features import example_weights
from ctr_trainer.layers.batch_norm import batch_norm, batch_statistics
from ctr_trainer.layers.mlp import mlp

tf1 = tf.compat.v1


def _run(*fetches):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        return session.run(fetches)


def test_a_batch_is_normalised_by_its_own_statistics_and_padding_counts_for_nothing():
    with tf.Graph().as_default():
        example_weights.record(tf.constant([1.0, 1.0, 0.0]))
        found, values = _run(
            batch_norm(tf.constant([[1.0], [5.0], [99.0]]), training=True, epsilon=0.0),
            [each.value for each in batch_statistics()],
        )
    np.testing.assert_allclose(found[:2], [[-1], [1]], rtol=1e-6)  # mean 3, variance 4
    assert np.concatenate(values).tolist() == [3, 4]


def test_a_batch_of_padding_is_finite():
    with tf.Graph().as_default():
        example_weights.record(tf.zeros([2]))
        assert np.isfinite(_run(batch_norm(tf.ones([2, 3]), training=True))).all()


def test_moving_statistics_move_by_the_momentum_but_not_without_examples():
    with tf.Graph().as_default():
        batch_norm(tf.zeros([2, 1]), training=True, momentum=0.9)
        mean, variance = batch_statistics()
        updates = [mean.update(tf.constant([2.0]), tf.constant(5.0)), variance.update(tf.constant([3.0]), 0.0)]
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            session.run(updates)
            moved = session.run([mean.variable, variance.variable])
    np.testing.assert_allclose(moved, [[0.2], [1.0]], rtol=1e-6)


def test_otherwise_the_moving_statistics_are_used():
    with tf.Graph().as_default():
        result = batch_norm(tf.constant([[5.0], [7.0]]), training=False, epsilon=0.0)
        assert batch_statistics() == []
        names = ["batch_norm/moving_mean", "batch_norm/moving_variance"]
        mean, variance = (next(v for v in tf1.global_variables() if v.op.name == name) for name in names)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            mean.load([3.0], session)
            variance.load([4.0], session)
            np.testing.assert_allclose(session.run(result), [[1], [2]], rtol=1e-6)


def test_the_gradient_equals_tensorflows_fused_one():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    upstream = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    with tf.Graph().as_default():
        example_weights.record(tf.fill([8], 2.0))
        inputs = tf.constant(x)
        ours = tf.gradients(tf.reduce_sum(batch_norm(inputs, training=True) * upstream), inputs)[0]
        fused, *_ = tf1.nn.fused_batch_norm(inputs[:, None, None], tf.ones([3]), tf.zeros([3]), epsilon=1e-3)
        theirs = tf.gradients(tf.reduce_sum(fused[:, 0, 0] * upstream), inputs)[0]
        found, expected = _run(ours, theirs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("batch_norm_on", [False, True])
def test_an_mlp_normalises_before_its_activation(batch_norm_on):
    with tf.Graph().as_default():
        (found,) = _run(mlp(tf.random.stateless_normal([64, 5], [1, 2]), (4,), training=True, batch_norm=batch_norm_on))
        names = {v.op.name.split("/")[1] for v in tf1.global_variables()}
    assert names == ({"layer_0", "batch_norm_0"} if batch_norm_on else {"layer_0"})
    if batch_norm_on:
        # Of normalised values about half are negative, and those that are not have a mean square of about a half.
        np.testing.assert_allclose((found**2).mean(0), 0.5, atol=0.2)
