"""When the dense tower of a training is offered for publication."""

import pytest
import tensorflow as tf

from ctr_trainer.live.publication.publishing import Publishing, trained_variables
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


class Offers:
    """Keeps what it is offered."""

    def __init__(self):
        self.offers, self.waited, self.status_line = [], None, None

    def offer(self, step, values):
        self.offers.append((step, {name: float(value) for name, value in values.items()}))

    def finish(self, seconds):
        self.waited = seconds


def _publish(publisher, steps, secs, names=("w",), stops=False):
    with tf.Graph().as_default():
        step = tf1.train.get_or_create_global_step()
        weight = tf1.get_variable("w", [], initializer=tf1.zeros_initializer())
        tf1.get_variable("slot", [])  # Of an optimizer: no part of the tower.
        train = tf.group(tf1.assign_add(step, 1), tf1.assign_add(weight, 0.5))
        publishing = Publishing(publisher, trained_variables(names), secs, Clock(), lambda: stops, grace_secs=30.0)
        with tf1.Session() as session:
            session.run(tf1.global_variables_initializer())
            publishing.begin(session, 0)
            for number in range(1, steps + 1):
                session.run(train)
                publishing.after_step(session, number)
            publishing.finish(session, steps)


def test_the_tower_is_offered_at_the_start_and_as_it_is_in_the_end():
    publisher = Offers()
    _publish(publisher, steps=3, secs=1000.0)
    assert publisher.offers == [(0, {"w": 0.0}), (3, {"w": 1.5})]


def test_the_tower_is_offered_when_the_time_is_over():
    publisher = Offers()
    _publish(publisher, steps=3, secs=1e-9)
    assert publisher.offers == [(step, {"w": step / 2}) for step in (0, 1, 2, 3, 3)]


@pytest.mark.parametrize(("stops", "seconds"), [(False, 600.0), (True, 10.0)])
def test_the_end_is_waited_for_and_after_a_signal_for_a_part_of_the_grace(stops, seconds):
    publisher = Offers()
    _publish(publisher, steps=1, secs=1000.0, stops=stops)
    assert publisher.waited == seconds


def test_a_variable_that_only_predictions_have_is_named():
    with pytest.raises(UserError, match="publish: the model predicts with the variable head/bias, which its training"):
        _publish(Offers(), steps=1, secs=1.0, names=("w", "head/bias"))
