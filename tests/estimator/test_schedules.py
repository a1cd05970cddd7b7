import math

import pytest
import tensorflow as tf

from ctr_trainer import run_length
from ctr_trainer.errors import UserError
from ctr_trainer.estimator.checkpoint import Checkpoint
from ctr_trainer.estimator.schedules import Schedule

tf1 = tf.compat.v1


def _factors(schedule, steps, begin=0, end=None):
    with tf.Graph().as_default():
        step = tf1.placeholder(tf.int64, [])
        factor = schedule.factor(step, begin, end)
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
    ("schedule", "begin", "end", "by_step"),
    [
        (Schedule("linear"), 0, 10, {0: 1.0, 5: 0.5, 9: 0.1}),  # the last step is made at more than nothing
        (Schedule("linear"), 10, 20, {10: 1.0, 15: 0.5}),  # a run that goes on after one that had ended
        (Schedule("linear"), 0, None, {0: 1.0, 999: 1.0}),
        (Schedule("linear", warmup_steps=2, end=0.5), 0, 12, {0: 0.5, 2: 1.0, 7: 0.75, 12: 0.5}),
        (Schedule("linear", warmup_steps=2), 10, 20, {10: 1.0, 15: 0.5}),
        (Schedule("linear", decay_steps=10), 5, 100, {5: 0.5, 10: 0.0}),  # as given, whatever the run
        (Schedule("cosine"), 0, 8, {0: 1.0, 4: 0.5}),
        (Schedule("cooldown"), 0, 100, {0: 1.0, 80: 1.0, 90: 0.5, 99: 0.05}),
        (Schedule("cooldown"), 100, 200, {100: 1.0, 190: 0.5}),
        (Schedule("cooldown", decay_steps=50, end=0.2), 0, 100, {50: 1.0, 75: 0.6, 100: 0.2}),
        (Schedule("cooldown"), 0, 3, {0: 1.0, 1: 1.0, 2: 1.0}),
        (Schedule("cooldown", decay_steps=50), 0, None, {999: 1.0}),
    ],
)
def test_factors_by_the_length_of_the_run(schedule, begin, end, by_step):
    assert _factors(schedule, by_step, begin, end) == pytest.approx(list(by_step.values()), abs=1e-6)


def _after(step, begin, end):
    return Checkpoint("path", step, [], [], None, 0, decay={"begin": begin, "end": end})


@pytest.mark.parametrize(
    ("checkpoint", "batches", "last", "begin", "end"),
    [
        (None, 10, None, 0, 10),
        (None, 10, 7, 0, 7),
        (None, None, 7, 0, 7),
        (None, None, None, 0, None),
        (_after(4, 0, 10), 6, None, 0, 10),  # killed, and started again as it was
        (_after(4, 0, 10), 16, None, 0, 20),  # more epochs
        (_after(10, 0, 10), 5, None, 10, 15),  # it had come to its end
        (_after(13, 10, 15), 2, None, 10, 15),
        (_after(10, 0, None), 5, None, 0, 15),
        (Checkpoint("path", 4, [], [], None, 0), 6, None, 0, 10),  # of a version that kept none
    ],
)
def test_the_length_of_a_run_that_goes_on(checkpoint, batches, last, begin, end):
    found = run_length.going_on(checkpoint, batches, last)
    assert found.decay() == {"begin": begin, "end": end}


def test_a_step_of_several_batches_counts_once():
    assert run_length.RunLength(start=2, batches=9).end(accumulation_steps=4) == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(name="cosin"), "choose one of constant, linear, cosine, exponential, cooldown, plateau"),
        (dict(name="exponential", decay_rate=0.5), "needs --decay_steps"),
        (dict(name="plateau", decay_rate=0.5), "needs --plateau_patience"),
        (dict(name="plateau", patience=2), "needs a --decay_rate between 0 and 1"),
        (dict(name="plateau", patience=2, decay_rate=0.5, decay_steps=9), "leave out --decay_steps=9"),
        (dict(name="linear", patience=2), "is for --lr_schedule=plateau, not linear"),
        (dict(name="exponential", decay_steps=10), "needs a --decay_rate"),
        (dict(name="linear", decay_steps=10, decay_rate=0.9), "is for --lr_schedule=exponential and plateau"),
        (dict(decay_steps=10), "does not decay"),
        (dict(name="linear", decay_steps=10, end=1.5), "a factor of the learning rate"),
    ],
)
def test_combinations_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Schedule(**settings)
