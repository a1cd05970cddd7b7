"""Experts, gates, towers and the layers of an ensemble against the formulas in NumPy."""

import functools

import numpy as np
import tensorflow as tf

from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.layers.experts import experts, mixture
from ctr_trainer.models.layers.mlp import mlp
from ctr_trainer.models.ple import extraction
from ctr_trainer.models.shared import TaskParams, task_logits
from ctr_trainer.models.tabm import Params, batch_ensemble
from tests.layers.run import run

NETWORK = functools.partial(mlp, hidden_units=(5,))
X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def _dense(x, values, name):
    return x @ values[f"{name}/kernel"] + values[f"{name}/bias"]


def _mlp(x, values, name):
    return np.maximum(_dense(x, values, f"{name}/layer_0"), 0)


def _gate(x, outputs, values, name):
    scores = _dense(x, values, name)
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    return sum(weights[:, [e]] * output for e, output in enumerate(outputs))


def test_a_mixture_weighs_by_the_softmax_of_its_selector():
    def make(x):
        return mixture(x, [tf.constant([[2.0]] * 4), tf.constant([[10.0]] * 4)])

    output, values = run(make, X)
    np.testing.assert_allclose(output, _gate(X, [np.full((4, 1), 2), np.full((4, 1), 10)], values, "gate"), rtol=1e-5)


def test_experts_are_networks_of_their_own():
    outputs, values = run(lambda x: experts(x, 2, NETWORK), X)
    for index, output in enumerate(outputs):
        np.testing.assert_allclose(output, _mlp(X, values, f"experts/expert_{index}"), atol=1e-6)
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3


def test_extraction_gives_a_task_its_own_and_the_shared_experts_and_no_others():
    (outputs, shared), values = run(lambda x: extraction({"a": x, "b": 2.0 * x}, 3.0 * x, 1, 2, NETWORK), X)
    inputs = {0: X, 1: 2 * X}
    own = {index: [_mlp(x, values, f"experts_{index}/expert_0")] for index, x in inputs.items()}
    common = [_mlp(3 * X, values, f"shared_experts/expert_{e}") for e in (0, 1)]
    for index, name in enumerate("ab"):
        expected = _gate(inputs[index], own[index] + common, values, f"gate_{index}")
        np.testing.assert_allclose(outputs[name], expected, atol=1e-5)
    expected = _gate(3 * X, own[0] + own[1] + common, values, "shared_gate")
    np.testing.assert_allclose(shared, expected, atol=1e-5)


def test_the_last_extraction_makes_no_shared_gate_that_nobody_would_train():
    (outputs,), values = run(lambda x: (extraction({"a": x}, x, 1, 1, NETWORK, last=True)[0],), X)
    assert list(outputs) == ["a"]
    assert not any(name.startswith("shared_gate") for name in values)


def test_a_tower_is_an_mlp_and_a_logit_or_a_logit_alone():
    def make(x, units):
        return task_logits({"click now": x, "buy": x}, ModeKeys.EVAL, TaskParams(tower_units=units))

    for units in ((5,), ()):
        logits, values = run(lambda x: make(x, units), X)  # noqa: B023
        for index, name in enumerate(("click now", "buy")):
            hidden = _mlp(X, values, f"tower_{index}/mlp") if units else X
            np.testing.assert_allclose(logits[name], _dense(hidden, values, f"tower_{index}/logits"), atol=1e-5)


tf1 = tf.compat.v1
INPUTS = np.float32([[1, -2, 0.5], [0, 3, -1]])


def _ensemble(x, units, members, mode=ModeKeys.EVAL, **params):
    return batch_ensemble(x, members, mode, Params(hidden_units=units, **params))


def test_each_member_is_the_perceptron_that_its_vectors_say():
    found, values = run(lambda x: _ensemble(x, (4, 2), 3), INPUTS)
    assert found.shape == (2, 3, 2)
    for member in range(3):
        x = INPUTS
        for layer in ("ensemble/layer_0", "ensemble/layer_1"):
            into, out, bias = (values[f"{layer}/{name}"][member] for name in ("scale_in", "scale_out", "bias"))
            x = np.maximum(((x * into) @ values[f"{layer}/kernel"]) * out + bias, 0)
        np.testing.assert_allclose(found[:, member], x, rtol=1e-5, atol=1e-6)


def test_members_begin_with_different_input_signs_and_equal_later_factors():
    with tf.Graph().as_default(), tf1.Session() as session:
        _ensemble(tf.constant(INPUTS), (4, 2), 8)
        session.run(tf1.global_variables_initializer())
        values = {v.op.name: session.run(v) for v in tf1.global_variables()}
    signs = values["ensemble/layer_0/scale_in"]
    assert set(np.unique(signs)) == {-1, 1} and len(np.unique(signs, axis=0)) > 1
    for name in ("layer_0/scale_out", "layer_1/scale_in", "layer_1/scale_out"):
        np.testing.assert_array_equal(values[f"ensemble/{name}"], 1)


def test_dropout_applies_while_training_only():
    def outputs(mode):
        return run(lambda x: _ensemble(x, (64,), 2, mode, dropout=0.5), INPUTS)[0]

    assert not np.array_equal(outputs(ModeKeys.TRAIN), outputs(ModeKeys.EVAL))
    np.testing.assert_array_equal(outputs(ModeKeys.EVAL), outputs(ModeKeys.EVAL))
