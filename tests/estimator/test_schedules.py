import math

import pytest
import tensorflow as tf

from ctr_trainer.errors import UserError
from ctr_trainer.estimator.schedules import Schedule

tf1 = tf.compat.v1


def _factors(schedule, steps):
    with tf.Graph().as_default():
        step = tf1.placeholder(tf.int64, [])
        factor = schedule.factor(step)
        with tf1.Session() as session:
            return [float(session.run(factor, {step: number})) for number in steps]


@pytest.mark.parametrize(
    ("schedule", "by_step"),
    [
        (Schedule(), {0: 1.0, 1000: 1.0}),
        (Schedule(warmup_steps=4), {0: 0.25, 1: 0.5, 3: 1.0, 4: 1.0, 99: 1.0}),
        (Schedule("linear", decay_steps=10, end=0.5), {0: 1.0, 5: 0.75, 10: 0.5, 50: 0.5}),
        (Schedule("linear", warmup_steps=2, decay_steps=10), {0: 0.5, 2: 1.0, 7: 0.5, 12: 0.0}),
        (Schedule("cosine", decay_steps=8, end=0.2), {0: 1.0, 4: 0.6, 2: 0.2 + 0.4 * (1 + math.sqrt(0.5)), 9: 0.2}),
        (Schedule("exponential", decay_steps=10, decay_rate=0.5), {0: 1.0, 5: math.sqrt(0.5), 20: 0.25}),
        (Schedule("exponential", decay_steps=10, decay_rate=0.5, end=0.3), {10: 0.5, 40: 0.3}),
    ],
)
def test_factors_by_step(schedule, by_step):
    assert _factors(schedule, by_step) == pytest.approx(list(by_step.values()), abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(name="cosin"), "choose one of constant, linear, cosine, exponential"),
        (dict(name="cosine"), "needs --decay_steps"),
        (dict(name="exponential", decay_steps=10), "needs a --decay_rate"),
        (dict(name="linear", decay_steps=10, decay_rate=0.9), "is for --lr_schedule=exponential"),
        (dict(decay_steps=10), "does not decay"),
        (dict(name="linear", decay_steps=10, end=1.5), "a factor of the learning rate"),
    ],
)
def test_combinations_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Schedule(**settings)
