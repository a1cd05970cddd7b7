"""The layers of WuKong and RankMixer against their equations in NumPy."""

import numpy as np
import pytest
from scipy.special import erf

from ctr_trainer.layers.tokens import rank_mixer_block, tokens_of, wukong_layer
from tests.layers.run import run, vectors

X = vectors(3, 5, 4)


def _norm(x, variables, name):
    centered = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return centered * variables[f"{name}/gamma"] + variables[f"{name}/beta"]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("combinations", [2, 3])
def test_a_wukong_layer_joins_products_of_pairs_and_combinations(combinations, normalize):
    output, v, _ = run(lambda x: wukong_layer(x, 3, combinations, rank=2, hidden_units=(6,), normalize=normalize), X)
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
    output, v, _ = run(lambda x: tokens_of(x, tokens=4, dim=8), inputs)
    padded = np.pad(inputs, ((0, 0), (0, 1)))
    for token in range(4):
        part = padded[:, 2 * token : 2 * token + 2]
        expected = part @ v["tokens/kernel"][token] + v["tokens/bias"][token]
        np.testing.assert_allclose(output[token], expected, rtol=1e-4, atol=1e-5)


def test_a_rank_mixer_block_swaps_the_heads_of_tokens_and_has_a_network_for_each():
    inputs = vectors(2, 3, 4)
    output, v, _ = run(lambda x: rank_mixer_block(x, expansion=3), inputs)
    for example in range(3):
        x = inputs[:, example]
        for token in range(2):
            heads = np.concatenate([x[other, 2 * token : 2 * token + 2] for other in range(2)])
            s = _norm(x[token] + heads, v, "block/mixing_norm")
            hidden = s @ v["block/hidden/kernel"][token] + v["block/hidden/bias"][token, 0]
            hidden = hidden * (1 + erf(hidden / np.sqrt(2))) / 2
            y = s + hidden @ v["block/output/kernel"][token] + v["block/output/bias"][token, 0]
            np.testing.assert_allclose(output[token, example], _norm(y, v, "block/output_norm"), rtol=1e-3, atol=1e-3)
