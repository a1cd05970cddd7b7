"""When checkpoints and evaluations are due, and rates by a clock that only the test moves."""

import types

import pytest
import tensorflow as tf

from ctr_trainer.estimator.hooks.log_hooks import MetricLines
from ctr_trainer.estimator.hooks.measuring_hooks import PhaseHook
from ctr_trainer.estimator.hooks.metrics_hook import LineTaker, MetricsHook
from ctr_trainer.estimator.run_length import Epochs, EveryEpochs, EverySeconds, EverySteps, RunLength
from ctr_trainer.system.measuring import clock as clocks
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError

tf1 = tf.compat.v1


@pytest.mark.parametrize(
    ("epochs", "start", "before", "accumulation_steps", "expected"),
    [
        (1, 0, 0, 1, [5, 10, 15, 20]),
        (2, 0, 0, 1, [10, 20]),
        (1, 7, 7, 1, [10, 15, 20]),  # going on in the middle of an epoch
        (2, 10, 10, 1, [20]),  # at the end of one
        (1, 7, 3, 1, [9, 14, 19]),  # on another number of workers: 3 of an epoch's 5 batches are over
        (2, 7, 13, 1, [14]),
        (1, 0, 0, 2, [3, 5, 8, 10, 13, 15, 18, 20]),  # the step by which the epoch is over
        (1, 0, 0, 15, list(range(1, 21))),  # three epochs a step
    ],
)
def test_the_ends_of_epochs_in_steps_of_batches_of_which_an_epoch_has_five(
    epochs, start, before, accumulation_steps, expected
):
    length = RunLength(start=start, epochs=Epochs(5, before), accumulation_steps=accumulation_steps)
    period = EveryEpochs(epochs, length)
    assert [step for step in range(start + 1, 21) if period.is_due(step)] == expected


def test_zero_steps_are_never_due():
    assert not any(EverySteps(0).is_due(step) for step in range(5))


def test_an_input_without_epochs_is_refused_with_the_flag_in_steps():
    with pytest.raises(UserError, match="eval_epochs=2: the input does not say .* count in steps, eval_steps"):
        EveryEpochs(2, RunLength())


def test_seconds_count_from_the_last_action():
    now = 0.0
    period, over = EverySeconds(3, lambda: now), []
    for step in range(1, 9):
        now += 1
        if period.is_over():
            over.append(step)
            now += 10  # The action takes time, which does not count.
            period.begin()
    assert over == [3, 6]


STEP, EVALUATION = 0.25, 1000.0


@pytest.fixture
def time(monkeypatch):
    found = types.SimpleNamespace(now=100.0)
    monkeypatch.setattr(clocks, "time", types.SimpleNamespace(perf_counter=lambda: found.now))
    return found


def test_evaluations_lower_no_rate(time, caplog):
    class Steps(tf1.train.SessionRunHook):
        """Each step takes STEP."""

        def before_run(self, run_context):
            time.now += STEP

    class Lines(LineTaker):
        rates = []

        def take(self, line):
            self.rates.append(line.steps_per_sec)

    clock = Clock()
    time.now += 50  # The start counts for none either.
    with tf.Graph().as_default(), caplog.at_level("INFO"):
        train_op = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        metrics = MetricsHook({}, tf.constant(1.0), [Lines(), MetricLines()], clock, every_n_steps=2)
        hooks = [PhaseHook(clock, "hooks", "hooks"), metrics, Steps(), PhaseHook(clock, "session", "loop")]
        with tf1.train.MonitoredSession(hooks=hooks) as session:
            for step in range(1, 8):
                session.run(train_op)
                seconds = clock.training_seconds()
                if step % 2 == 0 or step == 7:
                    with clock.within("evaluation"):
                        time.now += EVALUATION
    said = [message for message in caplog.messages if message.startswith("global_step/sec: ")]
    assert said[1:] == ["global_step/sec: 4"] * 3
    assert Lines.rates[1:] == [1 / STEP] * 3  # The first line began before the first step.
    assert seconds == pytest.approx(7 * STEP)
    assert clock.seconds["evaluation"] == 4 * EVALUATION  # after the steps 2, 4 and 6, and at the end
