"""The layers of an ensemble with shared matrices, against NumPy."""

import numpy as np
import tensorflow as tf

from ctr_trainer.layers.mlp import batch_ensemble
from tests.layers.graph import run

tf1 = tf.compat.v1
X = np.float32([[1, -2, 0.5], [0, 3, -1]])


def test_each_member_is_the_perceptron_that_its_vectors_say():
    found, values = run(lambda x: batch_ensemble(x, (4, 2), members=3, name="e"), X)
    assert found.shape == (2, 3, 2)
    for member in range(3):
        x = X
        for layer in ("e/layer_0", "e/layer_1"):
            into, out, bias = (values[f"{layer}/{name}"][member] for name in ("scale_in", "scale_out", "bias"))
            x = np.maximum(((x * into) @ values[f"{layer}/kernel"]) * out + bias, 0)
        np.testing.assert_allclose(found[:, member], x, rtol=1e-5, atol=1e-6)


def test_members_begin_with_different_signs_of_their_inputs_and_equal_factors_after_that():
    with tf.Graph().as_default(), tf1.Session() as session:
        batch_ensemble(tf.constant(X), (4, 2), members=8, name="e")
        session.run(tf1.global_variables_initializer())
        values = {v.op.name: session.run(v) for v in tf1.global_variables()}
    signs = values["e/layer_0/scale_in"]
    assert set(np.unique(signs)) == {-1, 1} and len(np.unique(signs, axis=0)) > 1
    for name in ("layer_0/scale_out", "layer_1/scale_in", "layer_1/scale_out"):
        np.testing.assert_array_equal(values[f"e/{name}"], 1)


def test_dropout_applies_while_training_only():
    def outputs(training):
        return run(lambda x: batch_ensemble(x, (64,), members=2, dropout=0.5, training=training, name="e"), X)[0]

    assert not np.array_equal(outputs(True), outputs(False))
    np.testing.assert_array_equal(outputs(False), outputs(False))
