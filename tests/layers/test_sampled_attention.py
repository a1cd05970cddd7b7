"""Attention by shared signatures, against plain NumPy and against the probability that two vectors share one."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.layers import attention as module
from ctr_trainer.layers.attention import sampled_attention
from tests.layers.graph import run

RNG = np.random.default_rng(1)
TARGET = RNG.normal(size=(3, 4)).astype(np.float32)
HISTORY = RNG.normal(size=(3, 9, 4)).astype(np.float32)
MASK = (np.arange(9) < np.array([[9], [4], [0]])).astype(np.float32)


def _by_hand(signatures, bits, normalize):
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


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("bits", [1, 2, 3])
def test_behaviours_of_the_targets_signature_are_summed(bits, normalize):
    found, _ = run(lambda q, h, m: sampled_attention(q, h, m, 8, bits, normalize), TARGET, HISTORY, MASK)
    expected = _by_hand(8, bits, normalize)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert expected[0].any()
    assert not found[2].any()


@pytest.mark.parametrize("bits", [1, 3])
@pytest.mark.parametrize("angle", [0.5, 1.5])
def test_the_share_of_signatures_follows_the_angle(angle, bits):
    """One behaviour of length 1 in the target's plane: its weight is the share of the signatures that it has too."""
    target, behaviour = np.zeros((2, 1, 4), np.float32)
    target[0, 0] = 1
    behaviour[0, :2] = np.cos(angle), np.sin(angle)
    mask = np.ones((1, 1), np.float32)
    pooled, _ = run(lambda q, h, m: sampled_attention(q, h, m, 20_000, bits, False), target, behaviour[:, None], mask)
    assert np.linalg.norm(pooled) == pytest.approx((1 - angle / np.pi) ** bits, abs=0.02)


def test_gradients_reach_the_behaviours_that_count_and_never_the_target():
    def gradients(target, history, mask):
        pooled = sampled_attention(target, history, mask, 4, 1, normalize=False)
        found = tf.gradients(pooled, [target, history])
        assert found[0] is None
        return found[1]

    found, _ = run(gradients, TARGET, HISTORY, MASK)
    assert found[0].any()
    assert not found[1, 4:].any()
    assert not found[2].any()
