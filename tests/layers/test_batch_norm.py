import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.features import tensors
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.layers.normalization import batch_norm, batch_statistics, default_momentum
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower

tf1 = tf.compat.v1


def _run(*fetches):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        return session.run(fetches)


def test_a_batch_is_normalised_by_its_own_statistics_without_padding():
    with tf.Graph().as_default():
        tensors.record_weights(tf.constant([1.0, 1.0, 0.0]))
        found, values = _run(
            batch_norm(tf.constant([[1.0], [5.0], [99.0]]), training=True, epsilon=0.0),
            [each.value for each in batch_statistics()],
        )
    np.testing.assert_allclose(found[:2], [[-1], [1]], rtol=1e-6)  # mean 3, variance 4
    assert np.concatenate(values).tolist() == [3, 8, 1]  # the population's variance is estimated by 8 / (2 - 1)


def test_a_batch_of_padding_is_finite():
    with tf.Graph().as_default():
        tensors.record_weights(tf.zeros([2]))
        assert np.isfinite(_run(batch_norm(tf.ones([2, 3]), training=True))).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_after_20_steps_evaluation_equals_that_with_exact_statistics(weighted):
    """Activations of small embeddings: of variances far below 1, where moving statistics that begin at 1 would be."""
    x = np.random.default_rng(0).normal([0.01, -3.0, 0.0], [0.02, 1.0, 0.1], (20, 16384, 3)).astype(np.float32)
    weights = np.random.default_rng(1).integers(0, 3, (20, 16384)).astype(np.float32)
    if not weighted:
        weights[:] = 1
    with tf.Graph().as_default(), tf1.Session() as session:
        batch, weight = tf1.placeholder(tf.float32, [None, 3]), tf1.placeholder(tf.float32, [None])
        if weighted:
            tensors.record_weights(weight)
        with tf1.variable_scope("model", reuse=tf1.AUTO_REUSE):
            batch_norm(batch, training=True)
            evaluated = batch_norm(batch, training=False)
        (statistic,) = batch_statistics()
        step = statistic.update(statistic.value, tf.reduce_sum(weight))
        session.run(tf1.global_variables_initializer())
        for values, of_examples in zip(x, weights, strict=True):
            session.run(step, {batch: values, weight: of_examples})
        found = session.run(evaluated, {batch: x[0]})
    mean = np.average(x, (0, 1), np.broadcast_to(weights[..., None], x.shape))
    variance = np.average((x - mean) ** 2, (0, 1), np.broadcast_to(weights[..., None], x.shape))
    np.testing.assert_allclose(found, (x[0] - mean) / np.sqrt(variance + 1e-3), atol=1e-3, rtol=0)


def test_small_batches_do_not_make_the_moving_variance_too_small():
    """The mean over all pairs (with repetition) of the values 0 and 4, whose population's variance is 4."""
    with tf.Graph().as_default(), tf1.Session() as session:
        batch = tf1.placeholder(tf.float32, [None, 1])
        batch_norm(batch, training=True)
        (statistic,) = batch_statistics()
        session.run(tf1.global_variables_initializer())
        pairs = [[0, 0], [0, 4], [4, 0], [4, 4]]
        values = [session.run(statistic.value, {batch: np.float32(pair)[:, None]}) for pair in pairs]
    assert np.mean(values, 0).tolist() == [2, 4, 1]


def test_moving_statistics_are_right_at_once_and_stay_without_examples():
    with tf.Graph().as_default(), tf1.Session() as session:
        with tf1.variable_scope("model", reuse=tf1.AUTO_REUSE):
            batch_norm(tf.zeros([2, 1]), training=True, momentum=0.9)
            result = batch_norm(tf.constant([[5.0], [7.0]]), training=False, epsilon=0.0)
        (statistic,) = batch_statistics()
        session.run(tf1.global_variables_initializer())
        assert session.run(result).tolist() == [[5], [7]]  # a mean of 0 and a variance of 1 before any step
        session.run(statistic.update(tf.constant([3.0, 4.0, 1.0]), 5.0))
        session.run(statistic.update(tf.constant([99.0, 99.0, 1.0]), 0.0))
        np.testing.assert_allclose(session.run(result), [[1], [2]], rtol=1e-6)
        np.testing.assert_allclose(session.run(statistic.weight), 0.1, rtol=1e-6)


def test_the_gradient_equals_tensorflows_fused_one():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    upstream = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    with tf.Graph().as_default():
        tensors.record_weights(tf.fill([8], 2.0))
        inputs = tf.constant(x)
        ours = tf.gradients(tf.reduce_sum(batch_norm(inputs, training=True) * upstream), inputs)[0]
        fused, *_ = tf1.nn.fused_batch_norm(inputs[:, None, None], tf.ones([3]), tf.zeros([3]), epsilon=1e-3)
        theirs = tf.gradients(tf.reduce_sum(fused[:, 0, 0] * upstream), inputs)[0]
        found, expected = _run(ours, theirs)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("batch_norm_on", [False, True])
def test_a_tower_normalises_before_its_activation(batch_norm_on):
    with tf.Graph().as_default():
        params = ModelParams(hidden_units=(4,), batch_norm=batch_norm_on)
        (found,) = _run(tower(tf.random.stateless_normal([64, 5], [1, 2]), ModeKeys.TRAIN, params))
        names = {v.op.name.split("/")[1] for v in tf1.global_variables()}
    assert names == ({"layer_0", "batch_norm_0"} if batch_norm_on else {"layer_0"})
    if batch_norm_on:
        # Of normalised values about half are negative, and those that are not have a mean square of about a half.
        np.testing.assert_allclose((found**2).mean(0), 0.5, atol=0.2)


@pytest.mark.parametrize(("steps", "momentum"), [(None, 0.99), (1e6, 0.99), (500, 0.98), (50, 0.9), (1, 0.9)])
def test_moving_statistics_are_of_a_tenth_of_an_epoch(steps, momentum):
    assert default_momentum(steps) == pytest.approx(momentum)
