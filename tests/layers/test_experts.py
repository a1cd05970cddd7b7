"""Experts, gates and towers against the formulas in NumPy."""

import functools

import numpy as np
import tensorflow as tf

from ctr_trainer.layers.experts import experts, extraction, mixture, towers
from ctr_trainer.layers.mlp import mlp
from tests.layers.graph import run

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


def test_a_tower_is_an_mlp_and_a_logit():
    logits, values = run(lambda x: towers({"click now": x, "buy": x}, NETWORK), X)
    for index, name in enumerate(("click now", "buy")):
        hidden = _mlp(X, values, f"tower_{index}/mlp")
        np.testing.assert_allclose(logits[name], _dense(hidden, values, f"tower_{index}/logits"), atol=1e-5)


def test_a_tower_without_hidden_units_is_a_logit():
    logits, values = run(lambda x: towers({"buy": x}), X)
    np.testing.assert_allclose(logits["buy"], _dense(X, values, "tower_0/logits"), atol=1e-6)
