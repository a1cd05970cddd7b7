import dataclasses
import math

import pytest
import tensorflow as tf

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.estimator import dense_optimizers, run_length
from ctr_trainer.estimator.run_length import Epochs, RunLength
from ctr_trainer.settings.train_settings import Schedule
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


def _factors(schedule, steps, run=RunLength()):  # noqa: B008, frozen
    with tf.Graph().as_default():
        step = tf1.placeholder(tf.int64, [])
        factor = dense_optimizers.factor(schedule, step, run)
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
        (Schedule("step", decay_steps=10, decay_rate=0.5), {0: 1.0, 9: 1.0, 10: 0.5, 19: 0.5, 20: 0.25, 31: 0.125}),
        (Schedule("step", 2, decay_steps=3, decay_rate=0.1, end=0.05), {0: 0.5, 4: 1.0, 5: 0.1, 7: 0.1, 8: 0.05}),
        (
            Schedule("piecewise", boundaries=(3, 5), factors=(1.0, 0.1, 0.02)),
            {0: 1.0, 2: 1.0, 3: 0.1, 4: 0.1, 5: 0.02, 99: 0.02},
        ),
        (Schedule("piecewise", 2, boundaries=(1,), factors=(0.5, 2.0)), {0: 0.25, 1: 2.0}),
    ],
)
def test_factors_by_step(schedule, by_step):
    assert _factors(schedule, by_step) == pytest.approx(list(by_step.values()), abs=1e-6)


TWENTY, THIRD = RunLength(epochs=Epochs(20)), RunLength(epochs=Epochs(100), accumulation_steps=3)
# 30 steps of epochs of 20 were made, 1.5; then come epochs of 10 steps.
SHORTER = RunLength(start=30, epochs=Epochs(10, before=15))


@pytest.mark.parametrize(
    ("schedule", "end", "run", "by_step"),
    [
        (Schedule("linear"), 10, RunLength(), {0: 1.0, 5: 0.5, 9: 0.1}),  # the last step is made at more than nothing
        (Schedule("linear"), 20, RunLength(10), {10: 1.0, 15: 0.5}),  # a run that goes on after one that had ended
        (Schedule("linear"), None, RunLength(), {0: 1.0, 999: 1.0}),
        (Schedule("linear", warmup_steps=2, end=0.5), 12, RunLength(), {0: 0.5, 2: 1.0, 7: 0.75, 12: 0.5}),
        (Schedule("linear", warmup_steps=2), 20, RunLength(10), {10: 1.0, 15: 0.5}),
        (Schedule("linear", decay_steps=10), 100, RunLength(5), {5: 0.5, 10: 0.0}),  # as given, whatever the run
        (Schedule("cosine"), 8, RunLength(), {0: 1.0, 4: 0.5}),
        (Schedule("cooldown"), 100, RunLength(), {0: 1.0, 80: 1.0, 90: 0.5, 99: 0.05}),
        (Schedule("cooldown"), 200, RunLength(100), {100: 1.0, 190: 0.5}),
        (Schedule("cooldown", decay_steps=50, end=0.2), 100, RunLength(), {50: 1.0, 75: 0.6, 100: 0.2}),
        (Schedule("cooldown"), 3, RunLength(), {0: 1.0, 1: 1.0, 2: 1.0}),
        (Schedule("cooldown", decay_steps=50), None, RunLength(), {999: 1.0}),
        (Schedule(warmup_steps=0.5, unit="epoch"), None, TWENTY, {0: 0.1, 4: 0.5, 9: 1.0, 10: 1.0}),
        (Schedule("linear", 0.5, 1, unit="epoch"), None, TWENTY, {10: 1.0, 20: 0.5, 30: 0.0}),
        (Schedule("linear", 0.5, unit="epoch"), 50, TWENTY, {10: 1.0, 30: 0.5}),  # until the end of the run
        (Schedule("cooldown", decay_steps=1, unit="epoch"), 100, TWENTY, {79: 1.0, 80: 1.0, 90: 0.5}),
        (Schedule("exponential", 0, 2, 0.25, unit="epoch"), None, TWENTY, {20: 0.5, 40: 0.25}),
        (Schedule("step", 0, 1, 0.5, unit="epoch"), None, TWENTY, {19: 1.0, 20: 0.5, 40: 0.25}),
        # Three batches a step and 100 an epoch: the third epoch ends with step 100, within none.
        (Schedule("step", 0, 3, 0.5, unit="epoch"), None, THIRD, {99: 1.0, 100: 0.5}),
        (Schedule("step", 0, 1, 0.5, unit="epoch"), None, THIRD, {33: 1.0, 34: 0.5}),
        (
            Schedule("piecewise", boundaries=(0.5, 2), factors=(1.0, 0.1, 0.01), unit="epoch"),
            None,
            TWENTY,
            {9: 1.0, 10: 0.1, 39: 0.1, 40: 0.01},
        ),
        (
            Schedule("piecewise", boundaries=(2,), factors=(1.0, 0.1), unit="epoch"),
            None,
            SHORTER,
            {34: 1.0, 35: 0.1},
        ),
        (Schedule(warmup_steps=2, unit="epoch"), None, SHORTER, {30: 0.8, 34: 1.0}),
        (Schedule("step", 1, 1, 0.5, unit="epoch"), None, SHORTER, {34: 1.0, 35: 0.5}),
    ],
)
def test_factors_by_the_length_of_the_run_and_its_epochs(schedule, end, run, by_step):
    assert _factors(schedule, by_step, dataclasses.replace(run, last=end)) == pytest.approx(
        list(by_step.values()), abs=1e-6
    )


def test_epochs_of_an_input_that_does_not_know_them_are_refused():
    with pytest.raises(UserError, match="unit=epoch: the input does not say .* count in steps, unit=step"):
        _factors(Schedule(warmup_steps=1, unit="epoch"), [0])


@pytest.mark.parametrize(
    ("start", "before", "accumulation_steps", "expected"),
    [
        (0, 0, 1, (20.0, 0.0)),
        (30, 30, 1, (20.0, 0.0)),  # as it was
        (30, 60, 1, (20.0, -30.0)),  # on half as many workers as before
        (10, 40, 4, (5.0, 0.0)),
        (7, 21, 3, (20 / 3, 0.0)),
    ],
)
def test_where_epochs_begin_in_steps(start, before, accumulation_steps, expected):
    length = RunLength(start=start, epochs=Epochs(20, before), accumulation_steps=accumulation_steps)
    assert (length.steps_per_epoch, length.first_epoch) == expected
    assert RunLength(start=start).steps_per_epoch is None


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
    ],
)
def test_the_length_of_a_run_that_goes_on(checkpoint, batches, last, begin, end):
    found = run_length.resumed(checkpoint, batches, last)
    assert found.decay() == {"begin": begin, "end": end}


def test_a_step_of_several_batches_counts_once():
    assert RunLength(start=2, batches=9, accumulation_steps=4).end() == 5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(name="exponential", decay_rate=0.5), "needs decay_steps"),
        (dict(name="plateau", decay_rate=0.5), "needs patience"),
        (dict(name="plateau", patience=2), "needs a decay_rate between 0 and 1"),
        (
            dict(name="plateau", patience=2, decay_rate=0.5, decay_steps=9),
            "decay_steps=9 is for .*, not plateau: leave it out",
        ),
        (dict(name="linear", patience=2), "is for name=plateau, not linear"),
        (dict(name="exponential", decay_steps=10), "needs a decay_rate"),
        (
            dict(name="linear", decay_steps=10, decay_rate=0.9),
            "decay_rate=0.9 is for name=exponential, step and plateau, not linear",
        ),
        (dict(decay_steps=10), "decay_steps=10 is for name=linear, .* and cooldown, not constant"),
        (dict(name="step", decay_rate=0.5), "needs decay_steps"),
        (dict(name="piecewise"), "needs boundaries and one more of factors"),
        (dict(name="piecewise", boundaries=(1, 2), factors=(1, 0.5)), "there are 2 and 2"),
        (dict(name="piecewise", boundaries=(2, 1), factors=(1, 1, 1)), "boundaries=2,1: expected ascending"),
        (dict(name="piecewise", boundaries=(0, 1), factors=(1, 1, 1)), "boundaries=0,1 must each be above 0"),
        (dict(name="piecewise", boundaries=(1,), factors=(1, -1)), "factors=1,-1 must each be at least 0"),
        (dict(name="piecewise", boundaries=(1.5,), factors=(1, 0)), "boundaries=1.5: steps are whole"),
        (dict(name="linear", boundaries=(1,)), "boundaries=1 is for name=piecewise, not linear"),
        (dict(factors=(1.0, 0.5)), "factors=1,0.5 is for name=piecewise, not constant"),
        (dict(warmup_steps=0.5), "warmup_steps=0.5: steps are whole; with unit=epoch it is in epochs"),
        (dict(name="linear", unit="epoch"), "is the unit of warmup_steps, decay_steps, boundaries"),
    ],
)
def test_combinations_that_cannot_work_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Schedule(**settings)
