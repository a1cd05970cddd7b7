import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.layers.bilinear import bilinear
from ctr_trainer.layers.ffm import ffm
from ctr_trainer.layers.pairs import pair_dots, pair_products
from tests.layers.run import assert_equal, run, vectors

PAIRS = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]


def test_dots_of_three_vectors():
    # <(1,2),(3,4)>, <(1,2),(5,6)>, <(3,4),(5,6)>; the gradient of 1, 2 and 3 times them
    output, _, (gradient,) = run(pair_dots, [[[1, 2], [3, 4], [5, 6]]])
    np.testing.assert_allclose(output, [[11, 17, 39]])
    np.testing.assert_allclose(gradient, [[[3 + 10, 4 + 12], [1 + 15, 2 + 18], [2 + 9, 4 + 12]]])


def test_products_of_three_vectors():
    output, _, _ = run(pair_products, [[[1, 2], [3, 4], [5, 6]]], [[[10, 1], [20, 2], [30, 3]]])
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
    output, _, (gradient,) = run(ffm, v)
    np.testing.assert_allclose(output, [[1 * 10 + 2 * 20 + 12 * 21]])
    np.testing.assert_allclose(gradient[0, :, :, 0], [[0, 10, 20], [1, 0, 21], [2, 12, 0]])


def test_field_aware_gradients_are_those_of_automatic_differentiation():
    def plain(v):
        pairs = [tf.reduce_sum(v[:, i, j] * v[:, j, i], 1, keepdims=True) for i, j in PAIRS]
        return tf.add_n(pairs)

    assert_equal(ffm, plain, vectors(3, 4, 4, 2))


@pytest.mark.parametrize("kind", ["all", "each", "interaction"])
def test_bilinear_interactions_are_v_i_w_times_v_j(kind):
    e = vectors(5, 4, 3)
    output, variables, _ = run(lambda x: bilinear(x, kind), e)
    matrices = {
        "all": lambda i, j: variables["bilinear/kernel"],
        "each": lambda i, j: variables["bilinear/kernel"][i],
        "interaction": lambda i, j: variables[f"bilinear/kernel_{i}"].reshape(3, 3 - i, 3)[:, j - i - 1],
    }
    expected = [(e[:, i] @ matrices[kind](i, j)) * e[:, j] for i, j in PAIRS]
    np.testing.assert_allclose(output, np.concatenate(expected, 1), rtol=1e-5, atol=1e-5)
