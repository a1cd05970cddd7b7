"""A loss that is a sum over the examples is seen in the graph."""

import pytest
import tensorflow as tf

from ctr_trainer.estimator.equal_variables import summed_over_examples

tf1 = tf.compat.v1


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
