import numpy as np
from scipy.special import softmax

from ctr_trainer.layers.cross import cross
from tests.layers.run import run, vectors

X = vectors(5, 4)


def test_a_full_layer_by_hand():
    output, variables, _ = run(lambda x: cross(x, 1), [[1, 2]])
    (a, b), (c, d) = variables["cross/layer_0/w/kernel"]
    e, f = variables["cross/layer_0/w/bias"]
    np.testing.assert_allclose(output, [[1 * (a + 2 * c + e) + 1, 2 * (b + 2 * d + f) + 2]], rtol=1e-5)


def _full(x, variables, layers):
    first = x
    for layer in layers:
        x = first * (x @ variables[f"{layer}/kernel"] + variables[f"{layer}/bias"]) + x
    return x


def test_full_layers():
    output, variables, _ = run(lambda x: cross(x, 2), X)
    expected = _full(X, variables, ["cross/layer_0/w", "cross/layer_1/w"])
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_low_rank_layers():
    output, variables, _ = run(lambda x: cross(x, 2, rank=2), X)
    x = X
    for layer in ("cross/layer_0", "cross/layer_1"):
        x = X * (x @ variables[f"{layer}/v"] @ variables[f"{layer}/u/kernel"] + variables[f"{layer}/u/bias"]) + x
    assert variables["cross/layer_0/v"].shape == (4, 2)
    np.testing.assert_allclose(output, x, rtol=1e-4, atol=1e-4)


def test_a_gate_mixes_experts_with_a_non_linearity():
    output, variables, _ = run(lambda x: cross(x, 1, rank=2, experts=3), X)
    v, c, u, bias, gate_kernel, gate_bias = (
        variables[f"cross/layer_0/{name}"] for name in ("v", "c", "u/kernel", "u/bias", "gate/kernel", "gate/bias")
    )
    gates = softmax(X @ gate_kernel + gate_bias, axis=1)
    mixed = sum(
        gates[:, i : i + 1] * (np.tanh(np.tanh(X @ v[:, 2 * i : 2 * i + 2]) @ c[i]) @ u[2 * i : 2 * i + 2])
        for i in range(3)
    )
    np.testing.assert_allclose(output, X * (mixed + bias) + X, rtol=1e-4, atol=1e-4)
