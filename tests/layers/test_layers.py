import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.layers.interactions import fm
from ctr_trainer.models.layers.linear import linear
from ctr_trainer.models.layers.mlp import dense, mlp
from ctr_trainer.models.layers.weights import glorot
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.shared import tower
from tests.layers.run import run, with_gradients

tf1 = tf.compat.v1


def _run(tensor):
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        return session.run(tensor)


def test_fm_is_the_sum_of_the_dot_products_of_all_pairs():
    # <(1,2),(3,4)> + <(1,2),(5,6)> + <(3,4),(5,6)> = 11 + 17 + 39, here twice
    (result, (gradient,)), _ = run(with_gradients(lambda v: 2.0 * fm(v)), [[[1, 2], [3, 4], [5, 6]]])
    np.testing.assert_allclose(result, [[2 * 67.0]])
    np.testing.assert_allclose(gradient, [[[16.0, 20.0], [12.0, 16.0], [8.0, 12.0]]])


def test_mlp_has_a_layer_for_each_width():
    with tf.Graph().as_default():
        assert mlp(tf.zeros([5, 3]), (8, 4)).shape == (5, 4)
        assert [v.shape.as_list() for v in tf1.trainable_variables()] == [[3, 8], [8], [8, 4], [4]]


def test_a_list_of_inputs_stands_for_their_concatenation():
    with tf.Graph().as_default():
        a, b = tf.constant([[1.0, 2.0]]), tf.constant([[3.0]])
        apart = dense([a, b], 2, "layer")
        kernels = [v for v in tf1.trainable_variables() if "kernel" in v.op.name]
        joined = tf.matmul(tf.concat([a, b], 1), tf.concat(kernels, 0))
        apart, joined, values = _run([apart, joined, kernels])
    np.testing.assert_allclose(apart, joined, rtol=1e-6)
    assert max(np.abs(value).max() for value in values) <= (6 / (3 + 2)) ** 0.5


def test_dropout_acts_only_while_training():
    with tf.Graph().as_default():
        tf1.set_random_seed(1)
        with tf1.variable_scope("model", reuse=tf1.AUTO_REUSE):
            inputs = tf.ones([50, 40])
            params = ModelParams(hidden_units=(40,), dropout=0.5)
            dropped, kept = (tower(inputs, mode, params) for mode in (ModeKeys.TRAIN, ModeKeys.EVAL))
        dropped, kept = _run([dropped, kept])
    assert np.count_nonzero(dropped) < 0.7 * np.count_nonzero(kept)


def test_the_linear_part_predicts_nothing_before_it_has_learned():
    with tf.Graph().as_default():
        features = {"linear": tf.zeros([2, 3, 1]), "dense": tf.constant([[1000.0, 2.0], [-30.0, 4.0]])}
        np.testing.assert_array_equal(_run(linear(features)), [[0.0], [0.0]])


@pytest.mark.parametrize("with_dense", [True, False])
def test_linear_sums_a_weight_a_feature(with_dense):
    with tf.Graph().as_default():
        features = {"linear": tf.constant([[[1.0], [2.0]], [[0.5], [0.25]]])}
        if with_dense:
            features["dense"] = tf.zeros([2, 3])
        np.testing.assert_allclose(_run(linear(features)), [[3.0], [0.75]])


def _first_values(seed, build):
    with tf.Graph().as_default():
        tf1.set_random_seed(seed)
        return _run(build())


def test_initial_values_depend_only_on_the_seed_and_the_name():
    def alone():
        with tf1.variable_scope("part"):
            return glorot("kernel", [30, 20], 30, 20)

    def among_others():
        tf.zeros([3]) + tf.ones([3])
        others = dense(tf.zeros([1, 4]), 2, "before"), glorot("kernel", [30, 20], 30, 20)
        return [alone(), others[1]]

    values = _first_values(1, alone)
    same, other_name = _first_values(1, among_others)
    np.testing.assert_array_equal(same, values)
    assert not np.allclose(other_name, values)
    assert not np.allclose(_first_values(2, alone), values)
    limit = (6 / 50) ** 0.5
    assert 0.98 * limit < np.abs(values).max() <= limit
