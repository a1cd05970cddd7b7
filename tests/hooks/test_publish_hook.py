"""The hook that offers the dense tower: at the start, now and then, and at the end."""

import pytest
import tensorflow as tf

from ctr_trainer.estimator.hooks.saving_hooks import PublishHook
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


class Publisher:
    """Keeps what it is offered."""

    def __init__(self):
        self.offers, self.waited = [], None

    def offer(self, step, values):
        self.offers.append((step, {name: float(value) for name, value in values.items()}))

    def finish(self, seconds):
        self.waited = seconds


def _run(publisher, steps, secs, names=("w",), stops=False):
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        tf1.get_variable("slot", [])  # Of an optimizer: no part of the tower.
        train = tf.group(tf1.assign_add(step, 1), tf1.assign_add(weight, 0.5))
        hook = PublishHook(publisher, names, secs, lambda: stops, grace_secs=30.0)
        with tf1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(steps):
                session.run(train)


def test_the_tower_is_offered_at_the_start_and_as_it_is_in_the_end():
    publisher = Publisher()
    _run(publisher, steps=3, secs=1000.0)
    assert publisher.offers == [(0, {"w": 0.0}), (3, {"w": 1.5})]


def test_the_tower_is_offered_when_the_time_is_over():
    publisher = Publisher()
    _run(publisher, steps=3, secs=1e-9)
    assert publisher.offers == [(step, {"w": step / 2}) for step in (0, 1, 2, 3, 3)]


@pytest.mark.parametrize(("stops", "seconds"), [(False, 600.0), (True, 10.0)])
def test_the_end_is_waited_for_and_after_a_signal_for_a_part_of_the_grace(stops, seconds):
    publisher = Publisher()
    _run(publisher, steps=1, secs=1000.0, stops=stops)
    assert publisher.waited == seconds


def test_a_variable_that_only_predictions_have_is_named():
    with pytest.raises(UserError, match="publish: the model predicts with the variable head/bias, which its training"):
        _run(Publisher(), steps=1, secs=1.0, names=("w", "head/bias"))
