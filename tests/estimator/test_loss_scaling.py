"""The reduction of a loss, and its scaling, here in float32: float16 is for GPUs."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.estimator.built_model import summed_over_examples
from ctr_trainer.estimator.optimize import TrainOp

tf1 = tf.compat.v1
X = np.array([[1, 2], [3, 4]], np.float32)


class _Features(dict):
    def __init__(self):
        super().__init__(weight=tf.ones([2]))
        self.row = tf1.placeholder(tf.float32, [2], "row")
        self.placeholders = [self.row]


def _train(feeds, scaled, optimizer="adagrad"):
    """Returns (w after each step, the gradient of the row in each step, the final loss scale)."""
    with tf.Graph().as_default():
        features, times = _Features(), tf1.placeholder(tf.float32, [])
        w = tf1.get_variable("w", initializer=np.array([0.5, -0.5], np.float32))
        loss = times * tf.reduce_mean(tf.square(tf.linalg.matvec(X, w) + features.row - 1))
        step = TrainOp(optimizer, 0.1).build(loss, features, scales_loss=scaled)
        scale = [v for v in tf1.global_variables() if "loss_scale" in v.op.name]
        found = []
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            for value in feeds:
                feed = {features.row: [0.1, 0.2], times: value}
                row = session.run([step.row_gradients, step.train_op], feed)[0]["row:0"]
                found.append((session.run(w), row))
            steps = session.run(tf1.train.get_global_step())
            return found, session.run(scale)[0] if scale else None, steps


@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "adam", "lamb"])
def test_a_scaled_loss_trains_as_it_is(optimizer):
    plain, none, _ = _train([1, 1, 1], False, optimizer)
    scaled, scale, step = _train([1, 1, 1], True, optimizer)
    assert (none, scale, step) == (None, 2**15, 3)
    for (w, row), (expected, expected_row) in zip(scaled, plain, strict=True):
        np.testing.assert_allclose(w, expected, rtol=1e-5)
        np.testing.assert_allclose(row, expected_row, rtol=1e-5)


def test_a_step_that_overflows_changes_nothing_and_halves_the_scale():
    huge = 1e36  # Times the scale, the gradient is infinite.
    found, scale, step = _train([1, huge, 1], True)
    (before, row), (after, no_row), (later, _) = found
    np.testing.assert_array_equal(after, before)
    np.testing.assert_array_equal(no_row, [0, 0])
    assert np.abs(row).min() > 0
    assert np.abs(later - after).min() > 0
    assert (scale, step) == (2**14, 3)


@pytest.mark.parametrize(
    "loss, is_sum",
    [
        (lambda each, w: tf.reduce_mean(each), False),
        (lambda each, w: tf.reduce_sum(each), True),
        (lambda each, w: tf.reduce_sum(each, axis=0) + 0.1 * tf.nn.l2_loss(w), True),
        (lambda each, w: tf.reduce_mean(each) + 0.1 * tf.reduce_sum(w * w), False),
        (lambda each, w: -tf.reduce_sum(each) * 0.5, True),
        (lambda each, w: tf.reduce_sum(each) / tf.cast(tf.shape(each)[0], tf.float32), False),
        (lambda each, w: tf.reduce_mean(tf.reduce_sum(each[:, None] * w, 1)), False),
        (lambda each, w: tf1.losses.compute_weighted_loss(each), False),
        (lambda each, w: tf1.losses.compute_weighted_loss(each, reduction=tf1.losses.Reduction.SUM), True),
    ],
)
def test_a_sum_over_the_examples_is_told_from_a_mean(loss, is_sum):
    with tf.Graph().as_default():
        x = tf1.data.make_initializable_iterator(tf.data.Dataset.range(8).batch(4)).get_next()
        w = tf1.get_variable("w", [2])
        each = tf.cast(x, tf.float32) * w[0]
        assert bool(summed_over_examples(loss(each, w))) == is_sum
