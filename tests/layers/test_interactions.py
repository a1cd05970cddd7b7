"""Layers that combine the vectors of features: pairs, CIN, attention between fields, cross layers."""

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import softmax

from ctr_trainer.features.ranked import RankedBlock, RankedColumns
from ctr_trainer.models import fcn, qnn
from ctr_trainer.models.autoint import interacting
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.ffm import ffm
from ctr_trainer.models.fibinet import bilinear, pair_products
from ctr_trainer.models.final_net import factorized_interaction
from ctr_trainer.models.gdcn import gated_cross
from ctr_trainer.models.layers.cross import cross
from ctr_trainer.models.layers.interactions import fm, pair_dots
from ctr_trainer.models.xdeepfm import cin
from tests.layers.run import assert_equal, run, vectors, with_gradients

PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def test_dots_of_three_vectors():
    # <(1,2),(3,4)>, <(1,2),(5,6)>, <(3,4),(5,6)>; the gradient of 1, 2 and 3 times them
    (output, (gradient,)), _ = run(with_gradients(pair_dots), [[[1, 2], [3, 4], [5, 6]]])
    np.testing.assert_allclose(output, [[11, 17, 39]])
    np.testing.assert_allclose(gradient, [[[3 + 10, 4 + 12], [1 + 15, 2 + 18], [2 + 9, 4 + 12]]])


def test_products_of_three_vectors():
    output, _ = run(pair_products, [[[1, 2], [3, 4], [5, 6]]], [[[10, 1], [20, 2], [30, 3]]])
    np.testing.assert_allclose(output, [[[20, 4], [30, 6], [90, 12]]])


@pytest.mark.parametrize("fields", [2, 3, 6])
def test_gradients_are_those_of_automatic_differentiation(fields):
    rows, columns = np.triu_indices(fields, 1)

    def plain_products(left, right):
        return tf.gather(left, rows, axis=1) * tf.gather(right, columns, axis=1)

    def plain_dots(e):
        return tf.reduce_sum(plain_products(e, e), 2)

    left, right = vectors(5, fields, 3), vectors(5, fields, 3, seed=2)
    assert_equal(pair_products, plain_products, left, right)
    assert_equal(pair_dots, plain_dots, left)


def test_field_aware_vectors_of_three_fields():
    # v_01 . v_10 + v_02 . v_20 + v_12 . v_21 with v_ij = 10 i + j, one float each; v_ii takes no part
    v = np.array([[[0, 1, 2], [10, 11, 12], [20, 21, 22]]])[..., None]
    (output, (gradient,)), _ = run(with_gradients(ffm), v)
    np.testing.assert_allclose(output, [[1 * 10 + 2 * 20 + 12 * 21]])
    np.testing.assert_allclose(gradient[0, :, :, 0], [[0, 10, 20], [1, 0, 21], [2, 12, 0]])


@pytest.mark.parametrize("kind", ["all", "each", "interaction"])
def test_bilinear_interactions_are_v_i_w_times_v_j(kind):
    e = vectors(5, 4, 3)
    output, variables = run(lambda x: bilinear(x, kind), e)
    matrices = {
        "all": lambda i, j: variables["bilinear/kernel"],
        "each": lambda i, j: variables["bilinear/kernel"][i],
        "interaction": lambda i, j: variables[f"bilinear/kernel_{i}"].reshape(3, 3 - i, 3)[:, j - i - 1],
    }
    expected = [(e[:, i] @ matrices[kind](i, j)) * e[:, j] for i, j in PAIRS]
    np.testing.assert_allclose(output, np.concatenate(expected, 1), rtol=1e-5, atol=1e-5)


def test_each_layers_maps_weigh_the_products_of_its_inputs_with_the_embeddings():
    e = vectors(3, 4, 2)
    output, variables = run(lambda x: cin(x, (5, 6)), e)
    first = np.einsum("bid,bjd,ijh->bhd", e, e, variables["cin/kernel_0"].reshape(4, 4, 5))
    second = np.einsum("bid,bjd,ijh->bhd", first, e, variables["cin/kernel_1"].reshape(5, 4, 6))
    expected = np.concatenate([first.sum(2), second.sum(2)], 1)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_each_field_is_mixed_from_all_by_similarity_in_each_head():
    e = vectors(5, 4, 3)
    output, variables = run(lambda x: interacting(x, heads=2, head_dim=2, name="layer"), e)
    query, key, value, residual = (e @ variables[f"layer/{name}"] for name in ("query", "key", "value", "residual"))
    heads = []
    for columns in (slice(0, 2), slice(2, 4)):
        weights = softmax(np.einsum("bmd,bkd->bmk", query[..., columns], key[..., columns]), axis=2)
        heads.append(weights @ value[..., columns])
    expected = np.maximum(np.concatenate(heads, 2) + residual, 0)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


X = vectors(5, 4)


def _full(x, variables, layers):
    first = x
    for layer in layers:
        x = first * (x @ variables[f"{layer}/kernel"] + variables[f"{layer}/bias"]) + x
    return x


def test_full_layers():
    output, variables = run(lambda x: cross(x, 2), X)
    expected = _full(X, variables, ["cross/layer_0/w", "cross/layer_1/w"])
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-4)


def test_low_rank_layers():
    output, variables = run(lambda x: cross(x, 2, rank=2), X)
    x = X
    for layer in ("cross/layer_0", "cross/layer_1"):
        x = X * (x @ variables[f"{layer}/v"] @ variables[f"{layer}/u/kernel"] + variables[f"{layer}/u/bias"]) + x
    assert variables["cross/layer_0/v"].shape == (4, 2)
    np.testing.assert_allclose(output, x, rtol=1e-4, atol=1e-4)


def test_a_gate_mixes_experts_with_a_non_linearity():
    output, variables = run(lambda x: cross(x, 1, rank=2, experts=3), X)
    v, c, u, bias, gate_kernel, gate_bias = (
        variables[f"cross/layer_0/{name}"] for name in ("v", "c", "u/kernel", "u/bias", "gate/kernel", "gate/bias")
    )
    gates = softmax(X @ gate_kernel + gate_bias, axis=1)
    mixed = sum(
        gates[:, i : i + 1] * (np.tanh(np.tanh(X @ v[:, 2 * i : 2 * i + 2]) @ c[i]) @ u[2 * i : 2 * i + 2])
        for i in range(3)
    )
    np.testing.assert_allclose(output, X * (mixed + bias) + X, rtol=1e-4, atol=1e-4)


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_a_gate_filters_each_cross_layer():
    output, variables = run(lambda x: gated_cross(x, 2), X)
    x = X
    for layer in ("gated_cross/layer_0", "gated_cross/layer_1"):
        linear = x @ variables[f"{layer}/w/kernel"] + variables[f"{layer}/w/bias"]
        x = X * linear * _sigmoid(x @ variables[f"{layer}/gate"]) + x
    np.testing.assert_allclose(output, x, rtol=1e-4, atol=1e-4)


def test_factorized_interactions_join_the_linear_part_or_are_added_to_it():
    for residual in ("concat", "sum"):
        output, variables = run(lambda x: factorized_interaction(x, 6, residual), X)  # noqa: B023
        a, c = np.split(X @ variables["factorized/kernel"] + variables["factorized/bias"], 2, axis=1)
        expected = np.concatenate([a, a * c], 1) if residual == "concat" else a + a * c
        assert output.shape == (5, 6)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalizes", [False, True])
def test_a_quadratic_layer_multiplies_the_input_by_rectified_rows(normalizes):
    params = qnn.Params(rows=3, batch_norm=normalizes, batch_norm_epsilon=0.1)
    output, variables = run(lambda x: qnn.quadratic(x, ModeKeys.TRAIN, params), X)
    rows = X @ variables["quadratic/kernel"] + variables["quadratic/bias"]
    if normalizes:
        gamma, beta = (variables[f"quadratic_norm/{name}"] for name in ("gamma", "beta"))
        rows = (rows - rows.mean(0)) / np.sqrt(rows.var(0) + 0.1) * gamma + beta
    rows = np.maximum(rows, 0).reshape(5, 3, 4)
    np.testing.assert_allclose(output, np.einsum("bn,brn->bn", X, rows) + X, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("exponential", "norm", "width"), [(True, "layer_norm", 4), (False, "batch_norm", 3)])
def test_a_masked_cross_meets_each_second_column_with_the_normalized_copy(exponential, norm, width):
    inputs, params = X[:, :width], fcn.Params(layer_norm=norm == "layer_norm", batch_norm=norm == "batch_norm")
    output, variables = run(lambda x: fcn.masked_cross(x, 2, ModeKeys.TRAIN, params, exponential), inputs)
    x = inputs
    for layer in ("masked_cross/layer_0", "masked_cross/layer_1"):
        copy = c = x @ variables[f"{layer}/kernel"]
        assert c.shape == (5, 2)
        if norm == "layer_norm":
            copy = (c - c.mean(1, keepdims=True)) / np.sqrt(c.var(1, keepdims=True) + 1e-5)
        own = layer if norm == "batch_norm" else f"{layer}/layer_norm"
        both = np.empty((5, 4))
        both[:, 0::2], both[:, 1::2] = c, copy * variables[f"{own}/gamma"] + variables[f"{own}/beta"]
        both = both[:, :width]
        if norm == "batch_norm":  # One mean and one variance of all columns.
            both = (both - both.mean()) / np.sqrt(both.var() + 1e-3)
            both = both * variables[f"{layer}/batch_norm/gamma"] + variables[f"{layer}/batch_norm/beta"]
        x = (x if exponential else inputs) * (both + variables[f"{layer}/bias"]) + x
    np.testing.assert_allclose(output, x, rtol=1e-4, atol=1e-4)


tf1 = tf.compat.v1


def _blocks(context, candidates, columns, width):
    """Returns the ranked columns of blocks of `width` features each, and float32[n, F, dim] of all of them."""
    blocks, expanded = [], []
    for start in range(0, columns.size, width):
        split = context.shape[1] * width // columns.size
        place, own = start // width * split, start // width * (width - split)
        shared, others = context[:, place : place + split], candidates[:, own : own + width - split]
        order = columns[start : start + width] - start
        full = np.empty((len(candidates), width, context.shape[2]), np.float32)
        full[:, order[:split]], full[:, order[split:]] = shared, others
        blocks.append(RankedBlock(*map(tf.constant, (shared, others, order)), width, context.shape[2]))
        expanded.append(full)
    return RankedColumns(tuple(blocks)), np.concatenate(expanded, 1)


def test_pairs_of_a_context_are_rounded_no_worse_than_expanded_rows():
    errors = np.zeros(2)
    for seed in range(10):
        for width in (24, 12):
            order = np.random.default_rng(seed)
            columns = np.concatenate([start + order.permutation(width) for start in range(0, 24, width)])
            with tf.Graph().as_default(), tf1.Session() as session:
                context, candidates = vectors(1, 18, 16, seed=seed), vectors(50, 6, 16, seed=seed + 100)
                ranked, full = _blocks(context, candidates, columns.astype(np.int32), width)
                np.testing.assert_array_equal(session.run(ranked.expanded()), full.reshape(50, -1))
                found = session.run([fm(ranked), fm(tf.constant(full))])
            exact = full.astype(np.float64)
            exact = 0.5 * (np.square(exact.sum(1)).sum(1) - np.square(exact).sum((1, 2)))[:, None]
            errors += [np.square(each - exact).sum() for each in found]
    assert errors[0] <= errors[1]
