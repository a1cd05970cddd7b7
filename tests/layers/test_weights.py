import numpy as np
import tensorflow as tf

from ctr_trainer.layers.mlp import dense
from ctr_trainer.layers.weights import glorot

tf1 = tf.compat.v1


def _first_values(seed, build):
    with tf.Graph().as_default():
        tf1.set_random_seed(seed)
        variables = build()
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            return session.run(variables)


def test_first_values_depend_on_the_seed_and_the_name_and_on_nothing_else_in_the_graph():
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
