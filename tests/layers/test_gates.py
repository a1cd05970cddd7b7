"""Layers that weigh their inputs, what stands behind them, and the layers of WuKong and RankMixer, against NumPy."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import erf, expit

from ctr_trainer.models.fibinet import senet
from ctr_trainer.models.final_mlp import fusion
from ctr_trainer.models.layers.mlp import gated
from ctr_trainer.models.layers.normalization import layer_norm
from ctr_trainer.models.masknet import mask_block
from ctr_trainer.models.onetrans import rms_norm
from ctr_trainer.models.rank_mixer import rank_mixer_block, tokens_of
from ctr_trainer.models.wukong import wukong_layer
from tests.layers.run import assert_equal, run, vectors, with_gradients


def _dense(x, variables, name):
    return x @ variables[f"{name}/kernel"] + variables[f"{name}/bias"]


def _normalized(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def test_senet_weighs_each_field_by_all_fields_means():
    e = vectors(5, 4, 3)
    output, variables = run(lambda x: senet(x, reduction=2), e)
    assert variables["senet/w1"].shape == (4, 2)
    weights = np.maximum(np.maximum(e.mean(2) @ variables["senet/w1"], 0) @ variables["senet/w2"], 0)
    assert (weights > 0).any()
    np.testing.assert_allclose(output, e * weights[:, :, None], rtol=1e-4, atol=1e-5)


def test_rms_norm_by_hand():
    """The mean square of [1, 7] is 25, and of [0, 0] it is 0."""
    output, variables = run(rms_norm, [[1, 7], [0, 0]])
    np.testing.assert_allclose(output, np.array([[1, 7], [0, 0]]) / np.sqrt(25.001), rtol=1e-6)
    assert not variables


@pytest.mark.parametrize(("shared", "shape"), [(True, (3,)), (False, (4, 3))])
def test_layer_norm_of_the_fields_of_an_example(shared, shape):
    e = vectors(5, 4, 3)
    output, variables = run(lambda x: layer_norm(x, shared), e)
    assert variables["layer_norm/gamma"].shape == shape
    expected = _normalized(e) * variables["layer_norm/gamma"] + variables["layer_norm/beta"]
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def test_layer_norms_gradient_is_that_of_automatic_differentiation():
    def plain(x):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        gamma, beta = (tf.compat.v1.get_variable(f"layer_norm/{name}", [3]) for name in ("gamma", "beta"))
        return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-5)

    assert_equal(layer_norm, plain, vectors(5, 3), rtol=1e-4)


def test_a_row_of_equal_values_is_normalised_to_zero_with_a_finite_gradient():
    (output, (gradient,)), variables = run(with_gradients(layer_norm), np.ones((1, 4)))
    np.testing.assert_allclose(output[0], variables["layer_norm/beta"])
    assert np.isfinite(gradient).all()


def test_a_mask_block_multiplies_its_inputs_by_a_mask_of_the_context():
    x, context = vectors(5, 4), vectors(5, 6, seed=2)
    output, variables = run(lambda a, b: mask_block(a, b, units=3, reduction=2.0, name="block"), x, context)
    hidden = np.maximum(_dense(context, variables, "block/aggregation"), 0)
    assert hidden.shape == (5, 8)
    masked = x * _dense(hidden, variables, "block/projection")
    normalized = _normalized(_dense(masked, variables, "block/output"))
    scaled = normalized * variables["block/layer_norm/gamma"] + variables["block/layer_norm/beta"]
    np.testing.assert_allclose(output, np.maximum(scaled, 0), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rows", [5, 1])
def test_a_gate_weighs_features_between_0_and_2(rows):
    x, context = vectors(5, 4), vectors(rows, 2, seed=2)
    output, variables = run(lambda a, b: gated(a, b, units=3, name="g"), x, context)
    hidden = np.maximum(_dense(context, variables, "g/hidden"), 0)
    np.testing.assert_allclose(output, 2 * expit(_dense(hidden, variables, "g/gate")) * x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2])
def test_fusion_is_linear_in_both_streams_and_bilinear_in_equal_parts(heads):
    a, b = vectors(5, 4), vectors(5, 6, seed=2)
    output, variables = run(lambda x, y: fusion(x, y, heads), a, b)
    linear = a @ variables["fusion/linear/kernel_0"] + b @ variables["fusion/linear/kernel_1"]
    parts = zip(np.split(a, heads, 1), np.split(b, heads, 1), variables["fusion/kernel"], strict=True)
    bilinear = sum(((x @ w) * y).sum(1, keepdims=True) for x, y, w in parts)
    np.testing.assert_allclose(output, linear + variables["fusion/linear/bias"] + bilinear, rtol=1e-4, atol=1e-4)


X = vectors(3, 5, 4)


def _norm(x, variables, name):
    centered = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return centered * variables[f"{name}/gamma"] + variables[f"{name}/beta"]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("combinations", [2, 3])
def test_a_wukong_layer_joins_products_of_pairs_and_combinations(combinations, normalize):
    output, v = run(lambda x: wukong_layer(x, 3, combinations, rank=2, hidden_units=(6,), normalize=normalize), X)
    assert ("wukong/residual" in v) == (combinations == 3)
    norm = _norm if normalize else lambda x, *_: x
    for x, found in zip(X, output, strict=True):
        pairs = norm((x @ x.T @ v["wukong/projection"]).ravel(), v, "wukong/pairs_norm")
        hidden = np.maximum(pairs @ v["wukong/mlp/layer_0/kernel"] + v["wukong/mlp/layer_0/bias"], 0)
        products = (hidden @ v["wukong/products/kernel"] + v["wukong/products/bias"]).reshape(3, 4)
        both = np.concatenate([products, v["wukong/combinations"].T @ x])
        residual = v["wukong/residual"].T @ x if combinations == 3 else x
        np.testing.assert_allclose(found, norm(both + residual, v, "wukong/layer_norm"), rtol=1e-3, atol=1e-3)


def test_tokens_are_projections_of_equal_parts():
    inputs = X.reshape(3, 20)[:, :7]
    output, v = run(lambda x: tokens_of(x, tokens=4, dim=8), inputs)
    padded = np.pad(inputs, ((0, 0), (0, 1)))
    for token in range(4):
        part = padded[:, 2 * token : 2 * token + 2]
        expected = part @ v["tokens/kernel"][token] + v["tokens/bias"][token]
        np.testing.assert_allclose(output[token], expected, rtol=1e-4, atol=1e-5)


def test_a_rank_mixer_block_swaps_heads_and_has_a_network_for_each_token():
    inputs = vectors(2, 3, 4)
    output, v = run(lambda x: rank_mixer_block(x, expansion=3), inputs)
    for example in range(3):
        x = inputs[:, example]
        for token in range(2):
            heads = np.concatenate([x[other, 2 * token : 2 * token + 2] for other in range(2)])
            s = _norm(x[token] + heads, v, "block/mixing_norm")
            hidden = s @ v["block/hidden/kernel"][token] + v["block/hidden/bias"][token, 0]
            hidden = hidden * (1 + erf(hidden / np.sqrt(2))) / 2
            y = s + hidden @ v["block/output/kernel"][token] + v["block/output/bias"][token, 0]
            np.testing.assert_allclose(output[token, example], _norm(y, v, "block/output_norm"), rtol=1e-3, atol=1e-3)
