import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.models.layers.dropout import dropout, micro_batch

tf1 = tf.compat.v1
RATE = 0.3


def _masks(steps=(0,), seed=1, micro=0, layers=1):
    """Returns bool[len(steps), layers, 1000], where new sessions drop ones, each at one of the global steps."""
    with tf.Graph().as_default():
        tf1.set_random_seed(seed)
        with tf1.variable_scope("model"):
            dropped = tf.stack([dropout(tf.ones([1000]), RATE) for _ in range(layers)])
        step = tf1.train.get_global_step()
        assert step.op.name == "global_step"  # As any other program names it.
        found = []
        for at in steps:
            with tf1.Session() as session:
                step.load(at, session)
                values = session.run(dropped, {micro_batch(): micro})
                assert set(np.unique(values)) == {np.float32(0), np.float32(1 / (1 - RATE))}
                found.append(values == 0)
        return np.array(found)


def test_a_mask_depends_only_on_seed_step_micro_batch_rank_and_layer(monkeypatch):
    masks = _masks(steps=(0, 1, 0), layers=2)
    np.testing.assert_array_equal(masks[2], masks[0])
    np.testing.assert_array_equal(_masks(steps=(1,), layers=2)[0], masks[1])
    others = [*masks[0], *masks[1], _masks(seed=2)[0, 0], _masks(micro=1)[0, 0], _masks(steps=(1,), micro=1)[0, 0]]
    monkeypatch.setenv("HOROVOD_RANK", "1")
    monkeypatch.setenv("HOROVOD_SIZE", "2")
    others.append(_masks()[0, 0])
    assert [np.mean(mask) for mask in others] == pytest.approx([RATE] * len(others), abs=0.06)
    for number, mask in enumerate(others):  # Independent masks agree in 0.3^2 + 0.7^2 of the places.
        for other in others[:number]:
            assert np.mean(mask == other) == pytest.approx(0.58, abs=0.08)


def test_without_a_rate_the_inputs_are_returned():
    with tf.Graph().as_default():
        inputs = tf.ones([3])
        assert dropout(inputs, 0.0) is inputs
