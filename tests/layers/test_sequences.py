"""The layers over histories, against the formulas in NumPy; tests/models/test_histories.py has their padding."""

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.features import tensors
from ctr_trainer.models import bst
from ctr_trainer.models.din import ACTIVATIONS, attention_pooling
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.layers.dice import dice, prelu
from ctr_trainer.models.layers.gru import Packed, gru, next_behaviour_loss
from ctr_trainer.models.layers.masks import Present, masked_mean, masked_softmax
from ctr_trainer.models.layers.normalization import batch_statistics
from tests.layers.run import check_gradients, run

tf1 = tf.compat.v1
RNG = np.random.default_rng(0)
TARGET = RNG.normal(size=(3, 4)).astype(np.float32)
HISTORY = RNG.normal(size=(3, 5, 4)).astype(np.float32)
MASK = np.float32([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]])  # full, short and empty


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))


def _softmax(x):
    exp = np.exp(x - x.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def test_masked_softmax_is_a_softmax_over_what_is_there():
    weights, _ = run(masked_softmax, np.float32([[0, np.log(3), 5], [1, 2, 3]]), np.float32([[1, 1, 0], [0, 0, 0]]))
    np.testing.assert_allclose(weights, [[0.25, 0.75, 0], [0, 0, 0]], atol=1e-6)


def test_masked_mean_is_the_mean_of_what_is_there():
    mean, _ = run(masked_mean, np.float32([[[1, 2], [3, 6], [9, 9]], [[1, 1]] * 3]), np.float32([[1, 1, 0], [0, 0, 0]]))
    np.testing.assert_allclose(mean, [[2, 4], [0, 0]])


def test_prelu_scales_what_is_below_zero():
    with tf.Graph().as_default(), tf1.Session() as session:
        output = prelu(tf.constant([[-2.0, 4.0]]))
        session.run(tf1.global_variables_initializer())
        np.testing.assert_allclose(session.run(output), [[-0.5, 4.0]])


class TestDice:
    def test_is_half_open_at_the_batchs_mean(self):
        """x = 0, 2, 4: mean 2, standard deviation sqrt(8/3); alpha 0, so f(x) = x sigmoid((x - 2) / deviation)."""
        with tf.Graph().as_default(), tf1.Session() as session:
            output = dice(tf.constant([[0.0], [2.0], [4.0]]), training=True)
            session.run(tf1.global_variables_initializer())
            expected = [[0], [1], [4 * _sigmoid(2 / np.sqrt(8 / 3))]]
            np.testing.assert_allclose(session.run(output), expected, rtol=1e-5)

    @pytest.mark.parametrize("steps", [1, 3])
    def test_the_statistics_leave_padding_out_and_are_unbiased_from_step_one(self, steps):
        x, mask = np.float32([[[0], [2]], [[4], [100]]]), np.float32([[1, 1], [1, 0]])
        (moments,), _ = run(lambda x, m: [_dice_moments(x, m, steps)], x, mask)
        np.testing.assert_allclose(moments[:, 0], [2, 8 / 3], rtol=1e-5)

    def test_a_batch_of_padding_only_changes_no_statistic_and_has_finite_gradients(self):
        with tf.Graph().as_default(), tf1.Session() as session:
            tensors.record_weights(tf.zeros([2]))
            x = tf.constant([[1.0], [2.0]])
            gradients = tf.gradients(dice(x, training=True), [x])
            (statistic,) = batch_statistics()
            session.run(tf1.global_variables_initializer())
            assert np.isfinite(session.run(gradients)).all()
            session.run(statistic.update(statistic.value, 1.0))
            assert session.run([statistic.moments, statistic.weight])[1] == 0

    def test_evaluation_uses_the_moving_statistics(self):
        with tf.Graph().as_default(), tf1.Session() as session:
            with tf1.variable_scope("model", reuse=tf1.AUTO_REUSE):
                dice(tf.constant([[0.0], [2.0], [4.0]]), training=True)
                output = dice(tf.constant([[2.0], [4.0]]))
            session.run(tf1.global_variables_initializer())
            (statistic,) = batch_statistics()
            session.run(statistic.update(statistic.value, 3.0))
            np.testing.assert_allclose(session.run(output), [[1], [4 * _sigmoid(2 / np.sqrt(8 / 3))]], rtol=1e-5)

    def test_workers_move_the_statistics_to_the_mean_over_all_behaviours(self):
        """Behaviours 0, 2 and 4 of one example (mean 2, variance 8/3); 10 of two, one of weight 0.5, one left out."""
        batches = [([[0, 2, 4]], [[1, 1, 1]], [1]), ([[10, 0, 0], [10, 7, 9]], [[1, 0, 0], [1, 1, 1]], [0.5, 0])]
        sums, weights = 0, [1, 0.5]
        for (x, mask, of_examples), weight in zip(batches, weights, strict=True):
            with tf.Graph().as_default(), tf1.Session() as session:
                tensors.record_weights(tf.constant(of_examples, tf.float32))
                present = Present.of(tf.constant(mask, tf.float32))
                dice(present.pack(tf.constant(x, tf.float32)[..., None]), present, training=True)
                (statistic,) = batch_statistics()
                session.run(tf1.global_variables_initializer())
                sums = sums + weight * session.run(statistic.value)
                if weight == weights[-1]:
                    session.run(statistic.update(tf.constant(sums / sum(weights)), sum(weights)))
                    moments, total = session.run([statistic.moments, statistic.weight])
        # 3 behaviours of mean 2 and variance 8/3, half a one of mean 10 and variance 0
        np.testing.assert_allclose(moments[:, 0] / total, [(3 * 2 + 0.5 * 10) / 3.5, 3 * 8 / 3 / 3.5], rtol=1e-5)
        assert total == pytest.approx(0.01)


def _dice_moments(x, mask, steps):
    present = Present.of(mask)
    dice(present.pack(x), present, training=True)
    (statistic,) = batch_statistics()
    updated = []
    for _ in range(steps):
        with tf.control_dependencies(updated):
            updated = [statistic.update(statistic.value, 1.0)]
    with tf.control_dependencies(updated):
        return statistic.moments.read_value() / statistic.weight.read_value()


def _attention_by_hand(target, history, mask, values, softmax):
    kernel, bias = values["attention/layer_0/kernel"], values["attention/layer_0/bias"]
    pooled = np.zeros_like(target)
    for b in range(len(target)):
        scores = []
        for t in range(history.shape[1]):
            q, h = target[b], history[b, t]
            joined = np.concatenate([q, h, q - h, q * h])
            hidden = _sigmoid(joined @ kernel.reshape(-1, kernel.shape[-1]) + bias)
            scores.append((hidden @ values["attention/score/kernel"] + values["attention/score/bias"])[0])
        scores, there = np.array(scores), mask[b] > 0
        weights = scores * mask[b]
        if softmax:
            weights = np.zeros(len(scores))
            weights[there] = _softmax(scores[there]) if there.any() else 0
        pooled[b] = weights @ history[b]
    return pooled


@pytest.mark.parametrize("softmax", [False, True])
def test_attention_pooling_weighs_behaviours_by_an_mlp_of_target_and_each(softmax):
    pooled, values = run(lambda q, h, m: attention_pooling(q, h, m, (6,), "sigmoid", softmax), TARGET, HISTORY, MASK)
    np.testing.assert_allclose(pooled, _attention_by_hand(TARGET, HISTORY, MASK, values, softmax), atol=1e-5)
    assert not pooled[2].any()  # the empty history


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_attention_pooling_has_right_gradients(activation):
    make = lambda q, h: attention_pooling(q, h, tf.constant(MASK), (5, 3), activation, training=True)  # noqa: E731
    smooth = activation in ("dice", "sigmoid")
    check_gradients(
        make, TARGET, HISTORY, tolerance=5e-3 if smooth else 2e-2
    )  # a step may cross the corner of the others


def _dice_as_written(x, alpha, weights):
    """Dice of a batch, float32[N, n], by the equation, with TensorFlow's own gradient."""
    count = tf.reduce_sum(weights)
    mean = tf.reduce_sum(x * weights[:, None], 0) / count
    variance = tf.reduce_sum(tf.math.squared_difference(x, mean) * weights[:, None], 0) / count
    gate = tf.sigmoid((x - mean) * tf.math.rsqrt(variance + 1e-6))
    return gate * x + (1.0 - gate) * alpha * x


def test_dice_and_its_gradients_follow_the_equation_also_with_padding():
    draw = np.random.default_rng(3)
    values, upstream = draw.normal(2.0, 3.0, size=(2, 40, 7)).astype(np.float32)
    weights = (draw.random(40) < 0.7).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        x, mask = tf.constant(values), tf.constant(weights)
        tensors.record_weights(mask)
        own = dice(x, training=True)
        (alpha,) = tf1.trainable_variables()
        session.run(tf1.global_variables_initializer())
        alpha.load(draw.normal(size=7), session)
        other = _dice_as_written(x, alpha, mask)
        found, expected = (
            session.run([output, *tf.gradients(output, [x, alpha], tf.constant(upstream))]) for output in (own, other)
        )
    for each, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(each, wanted, rtol=2e-5, atol=2e-6)


def test_packing_repeating_and_unpacking_have_the_gradients_of_gathers():
    vectors, upstream = RNG.normal(size=(3, 4)).astype(np.float32), RNG.normal(size=(7, 4)).astype(np.float32)
    values = RNG.normal(size=(7, 4)).astype(np.float32)
    with tf.Graph().as_default(), tf1.Session() as session:
        history, of_examples, packed = tf.constant(HISTORY), tf.constant(vectors), tf.constant(values)
        present = Present.of(tf.constant(MASK))
        own = [(present.pack(history), history), (present.repeat(of_examples), of_examples)]
        flat = tf.reshape(history, [15, 4])
        plain = [
            (tf.gather(flat, [0, 1, 2, 3, 4, 5, 6]), history),
            (tf.gather(of_examples, [0] * 5 + [1] * 2), of_examples),
        ]
        for (mine, of), (theirs, _) in zip(own, plain, strict=True):
            gradients = [tf.convert_to_tensor(tf.gradients(each, of, upstream)[0]) for each in (mine, theirs)]
            found, wanted, gradient, wanted_gradient = session.run([mine, theirs, *gradients])
            np.testing.assert_array_equal(found, wanted)
            np.testing.assert_allclose(gradient, wanted_gradient, atol=1e-6)
        unpacked = present.unpack(packed)
        (gradient,) = tf.gradients(unpacked, packed, tf.constant(HISTORY))
        found, gradient, sums = session.run([unpacked, gradient, present.sum(packed)])
    np.testing.assert_array_equal(found.reshape(15, 4), np.concatenate([values, np.zeros((8, 4))]))
    np.testing.assert_array_equal(gradient, HISTORY.reshape(15, 4)[:7])
    np.testing.assert_allclose(sums, [values[:5].sum(0), values[5:].sum(0), np.zeros(4)], atol=1e-6)


def _gru_by_hand(inputs, mask, values, attention):
    kernel, bias = values["gru/kernel"], values["gru/bias"]
    recurrent, recurrent_bias = values["gru/recurrent_kernel"], values["gru/recurrent_bias"]
    units = len(recurrent)
    states = np.zeros((*inputs.shape[:2], units))
    for b in range(len(inputs)):
        h = np.zeros(units)
        for t in range(inputs.shape[1]):
            if mask[b, t]:
                x, y = inputs[b, t] @ kernel + bias, h @ recurrent + recurrent_bias
                u, r = _sigmoid(x[:units] + y[:units]), _sigmoid((x + y)[units : 2 * units])
                c = np.tanh(x[2 * units :] + r * y[2 * units :])
                h = (1 - attention[b, t] * u) * h + attention[b, t] * u * c
            states[b, t] = h
    return states


@pytest.mark.parametrize("weighted", [False, True])
def test_gru_follows_its_equations_and_padding_keeps_the_state(weighted):
    attention = RNG.random((3, 5)).astype(np.float32) if weighted else np.ones((3, 5), np.float32)
    (states, last, examples, steps), values = run(
        lambda x, m, a: _gru(x, m, 6, a if weighted else None), HISTORY, MASK, attention
    )
    expected = _gru_by_hand(HISTORY, MASK, values, attention)
    np.testing.assert_allclose(states, expected[examples, steps], atol=1e-5)
    np.testing.assert_allclose(last, expected[:, -1], atol=1e-5)
    assert len(states) == MASK.sum() and not last[2].any()


def _gru(inputs, mask, units, attention=None):
    packed = Packed.of(mask)
    scales = None if attention is None else packed.pack(attention[..., None])
    states = gru(packed.pack(inputs), packed, units, scales)
    return states, packed.last(states), packed.examples, packed.steps


def _layer_norm(x, values, name):
    normal = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normal * values[f"{name}/gamma"] + values[f"{name}/beta"]


def test_self_attention_is_that_of_the_paper_for_each_head():
    mask = MASK.copy()
    mask[2, 0] = 1
    output, values = run(_attended, HISTORY, mask)
    projected = HISTORY @ values["attention/projection/kernel"] + values["attention/projection/bias"]
    queries, keys, states = np.split(projected, 3, -1)
    joined = np.zeros_like(HISTORY)
    for b in range(3):
        there = mask[b] > 0
        for head in (slice(0, 2), slice(2, 4)):
            weights = _softmax(queries[b, :, head] @ keys[b, there, head].T / np.sqrt(2))
            joined[b, :, head] = weights @ states[b, there, head]
    expected = joined @ values["attention/output/kernel"] + values["attention/output/bias"]
    np.testing.assert_allclose(output, expected * mask[..., None], atol=1e-5)


def test_transformer_block_adds_and_normalises_twice():
    (output, attended), values = run(lambda x, m: (_block(x, m, 7), _again(x, m)), HISTORY, MASK)
    middle = _layer_norm(HISTORY + attended, values, "transformer/attention_norm")
    hidden = middle @ values["transformer/hidden/kernel"] + values["transformer/hidden/bias"]
    hidden = np.where(hidden > 0, hidden, 0.2 * hidden)
    fed = hidden @ values["transformer/output/kernel"] + values["transformer/output/bias"]
    expected = _layer_norm(middle + fed, values, "transformer/output_norm") * MASK[..., None]
    np.testing.assert_allclose(output, expected, atol=1e-4)


def _again(x, mask):
    with tf1.variable_scope("transformer", reuse=True):
        return _attended(x, mask)


def _attended(x, mask):
    present = Present.of(mask)
    return present.unpack(bst.self_attention(present.pack(x), present, mask, heads=2))


def _block(x, mask, units):
    return bst.transformer_block(x, mask, ModeKeys.EVAL, bst.Params(heads=2, feed_forward_units=units))


def test_transformer_block_has_right_gradients():
    mask = np.float32([[1, 1, 1, 0, 0]] * 3)
    check_gradients(lambda x: _block(x, tf.constant(mask), 5), 3 * HISTORY, tolerance=1e-2)


def _next_behaviour_loss(states, history, mask, weight):
    packed = Packed.of(mask)
    return next_behaviour_loss(packed.pack(states), packed.pack(history), packed, weight)


def test_next_behaviour_loss_sets_what_followed_against_anothers_history():
    states, history = np.float32([[[1, 0], [0, 1]], [[2, 0], [0, 0]]]), np.float32([[[5, 5], [3, 1]], [[5, 5], [1, 4]]])
    loss, _ = run(_next_behaviour_loss, states, history, np.ones((2, 2), np.float32), np.float32([1, 3]))
    soft = lambda x: np.log1p(np.exp(x))  # noqa: E731
    # <h_1, e_2> is 3 and 2; with the other's e_2 it is 1 and 6.
    assert loss == pytest.approx((soft(-3) + soft(1) + 3 * (soft(-2) + soft(6))) / 4, rel=1e-6)


def test_next_behaviour_loss_has_no_negatives_of_examples_without_weight():
    rng = np.random.default_rng(1)
    states, history = (rng.normal(size=(3, 2, 2)).astype(np.float32) for _ in range(2))
    loss, _ = run(_next_behaviour_loss, states, history, np.ones((3, 2), np.float32), np.float32([1, 0, 1]))
    soft = lambda x: np.log1p(np.exp(x))  # noqa: E731
    # The first example has those of the last one; the last one would have those of the second, which is dropped.
    assert loss == pytest.approx(soft(-states[0, 0] @ history[0, 1]) + soft(states[0, 0] @ history[2, 1]), rel=1e-5)


def test_next_behaviour_loss_counts_only_steps_that_both_histories_have():
    rng = np.random.default_rng(1)
    states, history = (rng.normal(size=(2, 3, 2)).astype(np.float32) for _ in range(2))
    mask = np.float32([[1, 1, 1], [1, 1, 0]])
    loss, _ = run(_next_behaviour_loss, states, history, mask, np.ones(2, np.float32))
    cut, _ = run(_next_behaviour_loss, states[:, :2], history[:, :2], mask[:, :2], np.ones(2, np.float32))
    assert loss == pytest.approx(cut, rel=1e-6)
    nothing, _ = run(_next_behaviour_loss, states, history, np.zeros_like(mask), np.ones(2, np.float32))
    assert nothing == 0
