"""Attention by shared signatures against NumPy and the share of signatures, and the block of OneTrans by hand."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.features.behaviours import Behaviours
from ctr_trainer.models import sdim
from ctr_trainer.models.onetrans import onetrans_block
from ctr_trainer.models.sdim import sampled_attention
from tests.layers.run import check_gradients, run

RNG = np.random.default_rng(1)
TARGET = RNG.normal(size=(3, 4)).astype(np.float32)
HISTORY = RNG.normal(size=(3, 9, 4)).astype(np.float32)
MASK = (np.arange(9) < np.array([[9], [4], [0]])).astype(np.float32)


def _by_hand(signatures, bits, normalize):
    """The layer in plain loops: the sums of the behaviours that are on the target's side of all planes."""
    planes = np.random.default_rng(sdim._SEED).normal(size=(bits, 4, signatures)).astype(np.float32)
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
def test_behaviours_that_share_a_vector_add_their_gradients(normalize):
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


tf1 = tf.compat.v1
RANDOM = np.random.default_rng(0)
HEADS = 2
# Two tokens, and two histories, one of another dim: of 3, 1 and 0 behaviours, and of 2, 0 and 0.
TOKENS, LONG, SHORT = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((3, 2, 4), (3, 3, 4), (3, 2, 5)))
LONG_MASK, SHORT_MASK = np.float32([[1, 1, 1], [1, 0, 0], [0, 0, 0]]), np.float32([[1, 1], [0, 0], [0, 0]])


def _block(tokens, long, mask, short, short_mask):
    return onetrans_block(tokens, [long, short], [mask, short_mask], HEADS)


def _normed(x):
    return x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-3)


def _block_by_hand(number, values):
    """Returns y of one example: one softmax of each token and head over the tokens and what is there of histories."""
    lengths = LONG_MASK[number].sum().astype(int), SHORT_MASK[number].sum().astype(int)
    sources = [_normed(TOKENS[number]), _normed(LONG[number, : lengths[0]]), _normed(SHORT[number, : lengths[1]])]
    bias = values["onetrans/bias"]
    biases = np.concatenate([bias[:2], bias[2 : 2 + lengths[0]], bias[5 : 5 + lengths[1]]])
    outputs = []
    for i, x in enumerate(TOKENS[number]):
        asked = sources[0][i] @ values["onetrans/queries/kernel"][i] + values["onetrans/queries/bias"][i, 0]
        found = []
        for head, queries in enumerate(np.split(asked, HEADS)):
            parts = zip(sources, np.split(queries, [4, 8]), strict=True)
            scores = np.concatenate([source @ query / np.sqrt(len(query)) for source, query in parts]) + biases[:, head]
            weights = np.exp(scores) / np.exp(scores).sum()
            at = np.split(weights, [2, 2 + lengths[0]])
            found += [weight @ source for weight, source in zip(at, sources, strict=True)]
        kernel, bias = values["onetrans/output/kernel"][i], values["onetrans/output/bias"][i, 0]
        outputs.append(x + np.concatenate(found) @ kernel + bias)
    return np.array(outputs)


def test_each_token_attends_to_the_tokens_and_to_all_histories():
    output, values = run(_block, TOKENS, LONG, LONG_MASK, SHORT, SHORT_MASK)
    for number in range(3):
        np.testing.assert_allclose(output[number], _block_by_hand(number, values), atol=1e-5)


def test_a_token_gains_the_mean_of_the_vectors_where_all_scores_are_equal():
    """Normalised, the token is 1 and the behaviours are 1 and -1: 10 + (1 + 1 - 1) / 3, and 10 + 1 without them."""
    with tf.Graph().as_default(), tf1.Session() as session:
        tokens, history, mask = tf.fill([2, 1, 1], 10.0), tf.constant([[[10.0], [-10.0]]] * 2), [[1.0, 1.0], [0.0, 0.0]]
        output = onetrans_block(tokens, [history], [tf.constant(mask)], heads=1)
        for variable in tf1.trainable_variables():
            ones = variable.op.name == "onetrans/output/kernel"
            variable.load(np.full(variable.shape, float(ones)), session)
        np.testing.assert_allclose(session.run(output), [[[10 + 1 / 3]], [[11.0]]], atol=1e-4)


def test_gradients_are_the_numeric_ones_and_zero_for_padding():
    def block(tokens, long, short):
        return onetrans_block(tokens, [long, short], [tf.constant(LONG_MASK), tf.constant(SHORT_MASK)], HEADS)

    check_gradients(block, TOKENS, LONG, SHORT)
