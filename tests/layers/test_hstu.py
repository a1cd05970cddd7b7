"""The block of HSTU against its equations in NumPy, token by token."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.layers.tokens import hstu_block
from tests.layers.graph import run

tf1 = tf.compat.v1
RNG = np.random.default_rng(0)
CONTEXT, HEADS = 2, 2
# Two tokens of context, the target, and a history of 3, 1 and 0 behaviours.
TOKENS = RNG.normal(size=(3, 6, 4)).astype(np.float32)
MASK = np.float32([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])


def _silu(x):
    return x / (1 + np.exp(-x))


def _norm(x, values, name):
    centered = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
    return centered * values[f"hstu/{name}/gamma"] + values[f"hstu/{name}/beta"]


def _dense(x, values, name):
    return x @ values[f"hstu/{name}/kernel"] + values[f"hstu/{name}/bias"]


def _bias(i, j, bias):
    """Returns r_ij; None if i does not attend to j."""
    if j < CONTEXT:
        return bias[j]
    return bias[CONTEXT + j - i] if i >= CONTEXT and j >= i else None


def _by_hand(tokens, values):
    """Returns y of the valid tokens of one example."""
    normed = [_norm(x, values, "input_norm") for x in tokens]
    gates, queries = zip(*(np.split(_silu(_dense(x, values, "gates_and_queries")), 2) for x in normed), strict=True)
    contents, keys = zip(*(np.split(_silu(_dense(x, values, "values_and_keys")), 2) for x in normed), strict=True)
    outputs = []
    for i, x in enumerate(tokens):
        attended = np.zeros(4)
        for j in range(len(tokens)):
            bias = _bias(i, j, values["hstu/bias"])
            if bias is None:
                continue
            for head in range(HEADS):
                part = slice(2 * head, 2 * head + 2)
                attended[part] += _silu(queries[i][part] @ keys[j][part] + bias) * contents[j][part] / len(tokens)
        outputs.append(x + _dense(_norm(attended, values, "attention_norm") * gates[i], values, "output"))
    return np.array(outputs)


def _block(target_only=False):
    return lambda tokens, mask: hstu_block(tokens, mask, CONTEXT, HEADS, target_only=target_only)


def test_each_token_adds_up_the_context_and_what_is_older():
    output, values = run(_block(), TOKENS, MASK)
    for number, length in enumerate(MASK.sum(1).astype(int)):
        np.testing.assert_allclose(output[number, :length], _by_hand(TOKENS[number, :length], values), atol=2e-4)
        assert not output[number, length:].any()


def test_the_target_alone_has_its_output_of_the_whole_block():
    whole, _ = run(_block(), TOKENS, MASK)
    alone, _ = run(_block(target_only=True), TOKENS, MASK)
    np.testing.assert_allclose(alone, whole[:, CONTEXT], atol=1e-5)


def _plain(tokens, mask):
    """Returns y of all tokens, computed by stock operations from the variables of the block."""

    def variable(name):
        return {v.op.name: v for v in tf1.trainable_variables()}[f"hstu/{name}"]

    def normed(x, name):
        mean, variance = tf.nn.moments(x, -1, keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-5) * variable(f"{name}/gamma") + variable(f"{name}/beta")

    def layer(x, name):
        return tf.tensordot(x, variable(f"{name}/kernel"), 1) + variable(f"{name}/bias")

    def by_head(x):
        return tf.transpose(tf.reshape(x, [3, 6, HEADS, 2]), [0, 2, 1, 3])

    x = normed(tokens, "input_norm")
    gates, queries = tf.split(tf.nn.silu(layer(x, "gates_and_queries")), 2, 2)
    contents, keys = tf.split(tf.nn.silu(layer(x, "values_and_keys")), 2, 2)
    biases, parts = np.zeros((6, 6, 6), np.float32), np.zeros((6, 6), np.float32)
    for i, j in np.ndindex(6, 6):
        place = _bias(i, j, np.arange(6))
        if place is not None:
            biases[i, j, place] = parts[i, j] = 1
    scores = tf.matmul(by_head(queries), by_head(keys), transpose_b=True) + tf.tensordot(biases, variable("bias"), 1)
    weights = tf.nn.silu(scores) * parts * mask[:, None, None] / tf.reduce_sum(mask, 1)[:, None, None, None]
    attended = tf.reshape(tf.transpose(tf.matmul(weights, by_head(contents)), [0, 2, 1, 3]), [3, 6, 4])
    return tokens + layer(normed(attended, "attention_norm") * gates, "output")


@pytest.mark.parametrize("target_only", [False, True])
def test_gradients_are_those_of_stock_operations(target_only):
    factors = RNG.normal(size=(3, 6, 4)).astype(np.float32) * MASK[..., None]
    factors = factors[:, CONTEXT] if target_only else factors

    def both(tokens, mask):
        output = _block(target_only)(tokens, mask)
        plain = _plain(tokens, mask)
        inputs = [tokens, *tf1.trainable_variables()]
        plain = plain[:, CONTEXT] if target_only else plain
        return [tf.gradients(y * factors, inputs) for y in (output, plain)]

    (found, expected), _ = run(both, TOKENS, MASK)
    assert all(each.any() for each in expected)
    for mine, plain in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, plain, rtol=1e-3, atol=1e-3)
