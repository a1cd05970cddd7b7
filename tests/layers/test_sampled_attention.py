"""Attention by shared signatures, against plain NumPy and against the probability that two vectors share one."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.features.behaviours import Behaviours
from ctr_trainer.layers import signatures as module
from ctr_trainer.layers.attention import sampled_attention
from tests.layers.graph import run

RNG = np.random.default_rng(1)
TARGET = RNG.normal(size=(3, 4)).astype(np.float32)
HISTORY = RNG.normal(size=(3, 9, 4)).astype(np.float32)
MASK = (np.arange(9) < np.array([[9], [4], [0]])).astype(np.float32)


def _by_hand(signatures, bits, normalize):
    """The layer in plain loops: the sums of the behaviours that are on the target's side of all planes."""
    planes = np.random.default_rng(module._SEED).normal(size=(bits, 4, signatures)).astype(np.float32)
    pooled = np.zeros((3, 4))
    for example in range(3):
        for signature in range(signatures):
            normals = planes[:, :, signature]
            total = np.zeros(4)
            for behaviour, there in zip(HISTORY[example], MASK[example], strict=True):
                if there and ((normals @ behaviour > 0) == (normals @ TARGET[example] > 0)).all():
                    total += behaviour
            if normalize and total.any():
                total /= np.linalg.norm(total)
            pooled[example] += total / signatures
    return pooled


def _packed(history, mask):
    """Returns the `Behaviours` of float32[B, L, dim] at the positions of the array `mask` that are 1."""
    found = np.argwhere(mask)
    pairs = np.stack([found[:, 0], np.arange(len(found))], 1)
    return Behaviours(tf.gather_nd(history, found), tf.constant(pairs, tf.int32))


def _of_both(target, history, mask, *settings, of_pooled=lambda pooled, history: pooled):
    """Returns what `of_pooled` makes of the layer on padded histories and on `Behaviours`."""

    def make(q, h, m):
        given = (h, m), (_packed(h, mask), None)
        return [of_pooled(sampled_attention(q, *each, *settings), h) for each in given]

    return run(make, target, history, mask)[0]


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize(("signatures", "bits"), [(8, 1), (8, 2), (16, 3), (17, 3), (40, 1), (100, 2), (3, 4)])
def test_behaviours_of_the_targets_signature_are_summed(signatures, bits, normalize):
    expected = _by_hand(signatures, bits, normalize)
    assert expected[0].any()
    for found in _of_both(TARGET, HISTORY, MASK, signatures, bits, normalize):
        np.testing.assert_allclose(found, expected, atol=1e-6, rtol=1e-6)
        assert not found[2].any()


@pytest.mark.parametrize("bits", [1, 3])
@pytest.mark.parametrize("angle", [0.5, 1.5])
def test_the_share_of_signatures_follows_the_angle(angle, bits):
    """One behaviour of length 1 in the target's plane: its weight is the share of the signatures that it has too."""
    target, behaviour = np.zeros((2, 1, 4), np.float32)
    target[0, 0] = 1
    behaviour[0, :2] = np.cos(angle), np.sin(angle)
    for pooled in _of_both(target, behaviour[:, None], np.ones((1, 1), np.float32), 20_000, bits):
        assert np.linalg.norm(pooled) == pytest.approx((1 - angle / np.pi) ** bits, abs=0.02)


@pytest.mark.parametrize("normalize", [True, False])
def test_gradients_reach_the_behaviours_that_count_and_never_the_target(normalize):
    factors = RNG.normal(size=(3, 4)).astype(np.float32)

    def gradients(target, history, mask):
        found = []
        for given in ((history, mask), (_packed(history, MASK), None)):
            loss = tf.reduce_sum(factors * sampled_attention(target, *given, 4, 1, normalize))
            of_target, of_history = tf.gradients(loss, [target, history])
            assert of_target is None
            found.append(tf.convert_to_tensor(of_history))
        return found

    (padded, packed), _ = run(gradients, TARGET, HISTORY, MASK)
    assert padded[0].any()
    assert not padded[1, 4:].any()
    assert not padded[2].any()
    np.testing.assert_allclose(packed, padded, atol=1e-6, rtol=1e-6)


def _with_shared_vectors(signatures, bits, normalize):
    """Returns f(q, h) of vectors h: example 0 has the vectors 2, 0 and 2, example 1 has 1, example 2 has none."""
    pairs = tf.constant([[0, 2], [0, 0], [0, 2], [1, 1]])
    return lambda q, h: sampled_attention(
        q, Behaviours(h, pairs), signatures=signatures, bits=bits, normalize=normalize
    )


@pytest.mark.parametrize("normalize", [True, False])
def test_behaviours_that_share_a_vector_count_as_often_as_they_come_and_add_their_gradients(normalize):
    vectors = HISTORY[0, :4]
    history, mask = np.zeros((3, 3, 4), np.float32), np.zeros((3, 3), np.float32)
    history[0], history[1, 0] = vectors[[2, 0, 2]], vectors[1]
    mask[0], mask[1, 0] = 1, 1
    factors = RNG.normal(size=(3, 4)).astype(np.float32)

    def with_gradients(pooled, of):
        return pooled, tf.convert_to_tensor(tf.gradients(tf.reduce_sum(pooled * factors), of)[0])

    (found, gradient), _ = run(
        lambda q, h: with_gradients(_with_shared_vectors(8, 1, normalize)(q, h), h), TARGET, vectors
    )
    (expected, by_behaviour), _ = run(
        lambda q, h, m: with_gradients(sampled_attention(q, h, m, 8, 1, normalize), h), TARGET, history, mask
    )
    np.testing.assert_allclose(found, expected, atol=1e-6)
    summed = np.stack([by_behaviour[0, 1], by_behaviour[1, 0], by_behaviour[0, 0] + by_behaviour[0, 2], np.zeros(4)])
    np.testing.assert_allclose(gradient, summed, atol=1e-6)
    assert found[:2].any(1).all() and not found[2].any()


@pytest.mark.parametrize("bits", [1, 2])
def test_zeros_are_on_no_side_of_a_plane(bits):
    """A projection of exactly 0, of the target, of the behaviour or of both, shares nothing and has no gradient."""
    zeros = np.zeros(4, np.float32)
    targets, behaviours = np.stack([TARGET[0], zeros, zeros, TARGET[0]]), np.stack([zeros, TARGET[0], zeros, TARGET[0]])

    def with_gradients(pooled, history):
        return pooled, tf.convert_to_tensor(tf.gradients(pooled, history)[0])

    mask = np.ones((4, 1), np.float32)
    for found, gradients in _of_both(targets, behaviours[:, None], mask, 3, bits, of_pooled=with_gradients):
        np.testing.assert_allclose(found, [zeros, zeros, zeros, TARGET[0]], rtol=1e-6)
        np.testing.assert_allclose(gradients[:, 0], np.eye(4)[:, 3:] * np.ones(4), rtol=1e-6)


def test_more_bits_than_a_word_has_room_for_are_refused():
    with tf.Graph().as_default(), pytest.raises(ValueError, match="64 bits of a signature: give 1 to 63"):
        sampled_attention(tf.ones([2, 4]), tf.ones([2, 3, 4]), tf.ones([2, 3]), 1, 64)


@pytest.mark.parametrize("bits", [31, 63])
def test_a_behaviour_equal_to_the_target_shares_signatures_of_many_bits(bits):
    history = np.stack([TARGET, -TARGET], 1)
    for found in _of_both(TARGET, history, np.ones((3, 2), np.float32), 5, bits):
        np.testing.assert_allclose(found, TARGET, rtol=1e-6)
