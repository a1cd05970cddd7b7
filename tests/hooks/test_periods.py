"""When checkpoints, evaluations and publications are due, and rates by a clock that only the test moves."""

import types

import pytest
import tensorflow as tf

from ctr_trainer.estimator.hooks.log_hooks import StepRate
from ctr_trainer.estimator.hooks.measuring_hooks import SessionClockHook, StepClockHook
from ctr_trainer.estimator.hooks.metrics_hook import LineTaker, MetricsHook
from ctr_trainer.estimator.hooks.periods import (
    EventClock,
    EveryEpochs,
    EverySeconds,
    EverySteps,
    EveryStepsOrSeconds,
    SecondsOfChief,
)
from ctr_trainer.estimator.hooks.saving_hooks import CheckpointHook, EvaluationHook, PublishHook
from ctr_trainer.estimator.hooks.step_hook import StepHook, in_order
from ctr_trainer.graph_notes.run_length import Epochs, RunLength
from ctr_trainer.system.measuring import clock as clocks
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError
from tests.hooks.test_hooks import Saved, _run
from tests.metrics.ranks import Ranks

FLAGS = ("eval_epochs", "eval_steps")


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
    period = EveryEpochs(epochs, length, FLAGS)
    assert [step for step in range(start + 1, 21) if period.is_due(step)] == expected


def test_zero_steps_are_never_due():
    assert not any(EverySteps(0).is_due(step) for step in range(5))


def test_an_input_without_epochs_is_refused_with_the_flag_in_steps():
    with pytest.raises(UserError, match="eval_epochs=2: the input does not say .* count in steps, eval_steps"):
        EveryEpochs(2, RunLength(), FLAGS)


class StepSeconds(StepHook):
    """Goes on by a second after each step."""

    now = 0

    def __call__(self):
        return self.now

    def after_step(self, run_context, run_values):
        self.now += 1


def test_one_worker_saves_when_the_time_since_the_last_checkpoint_is_over():
    clock = StepSeconds()

    def takes_long():
        clock.now += 10  # which does not count

    saved = Saved(takes_long)
    _run(lambda: [clock, CheckpointHook(saved, EverySeconds(3, clock))], steps=8)
    assert saved.steps == [3, 6, 8]


def test_an_event_clock_starts_at_the_first_event_and_stops_without_times():
    times = iter([0.0, 1000.0, 1000.0, 1600.0])
    clock = EventClock(lambda: next(times))
    assert [clock() for _ in range(4)] == [0.0, 0.0, 0.0, 600.0]
    assert [EventClock(None)() for _ in range(2)] == [0.0, 0.0]


def test_a_sync_by_steps_or_seconds_counts_the_seconds_from_the_previous_sync():
    now, due = 0.0, []
    period = EveryStepsOrSeconds(4, 0, 2.0, lambda: now)
    for step in range(1, 13):
        now += 0.1 if step <= 8 else 1.0
        if period.is_due(step):
            due.append(step)
            period.begin()
    assert due == [4, 8, 10, 12]


def _save_by_rank_0s_clock(seconds_of_step, period_seconds, steps=30, longest_step_secs=0.0):
    """Returns the steps after which each rank saves, and after which it is told; clocks of ranks 1 and 2 stand still.

    Args:
      seconds_of_step: f(step) -> how long it takes.
    """

    def work(rank, all_sum, all_gather):
        done, saved, asked = StepSeconds(), Saved(), []
        clock = (lambda: sum(map(seconds_of_step, range(1, done() + 1)))) if rank == 0 else (lambda: 0)

        def add_up(told):
            asked.append(done())
            return all_sum(told, "checkpoint_due")

        period = SecondsOfChief(period_seconds, rank == 0, add_up, clock, longest_step_secs)
        _run(lambda: [done, CheckpointHook(saved, period)], steps=steps)
        return saved.steps, asked

    return Ranks(3).run(work)


def test_all_workers_save_after_the_same_step_by_rank_0s_clock():
    """Steps of 1 s: the pace is known after step 2, and then what is left is halved: 3, 2, 1, 0 s of 5."""
    assert (
        _save_by_rank_0s_clock(lambda step: 1.0, 5, steps=16)
        == [([5, 10, 15, 16], [1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15])] * 3
    )


def test_workers_with_short_steps_are_told_four_times_in_a_period():
    """Steps of 0.1 s: at first after four times the steps that were done, then after half of what is left."""
    saved, asked = _save_by_rank_0s_clock(lambda step: 0.1, 10, steps=300)[0]
    assert (saved, asked) == ([100, 200, 300], [1, 2, 6, 26, 62, 81, 90, 150, 175, 187, 249, 274, 286])


@pytest.mark.parametrize(("fast", "period_seconds"), [(1, 2), (50, 2), (200, 10), (3000, 60)])
def test_a_stream_that_falls_quiet_puts_off_a_checkpoint_by_one_step_at_most(fast, period_seconds):
    """Steps of 0.01 s, then of 2 s each."""
    saved, _ = _save_by_rank_0s_clock(
        lambda step: 0.01 if step <= fast else 2.0, period_seconds, steps=fast + 100, longest_step_secs=2.0
    )[0]
    times = [0.0, *(0.01 * min(step, fast) + 2.0 * max(step - fast, 0) for step in saved)]
    assert len(times) >= 4
    assert max(after - before for before, after in zip(times, times[1:], strict=False)) <= period_seconds + 4.0


def test_slower_steps_delay_a_checkpoint_by_a_part_of_its_period():
    """Steps of 0.1 s are of 0.2 s after the 100th: told after 150, by when the time is over, all save at once."""
    saved, _ = _save_by_rank_0s_clock(lambda step: 0.1 if step <= 100 else 0.2, 10, steps=250)[0]
    assert saved == [100, 150, 200, 250]


tf1 = tf.compat.v1


class Publisher:
    """Keeps what it is offered."""

    def __init__(self):
        self.offers, self.waited = [], None

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
        hook = PublishHook(publisher, names, secs, lambda: stops, grace_secs=30.0)
        with tf1.train.MonitoredSession(hooks=[hook]) as session:
            for _ in range(steps):
                session.run(train)


def test_the_tower_is_offered_at_the_start_and_as_it_is_in_the_end():
    publisher = Publisher()
    _publish(publisher, steps=3, secs=1000.0)
    assert publisher.offers == [(0, {"w": 0.0}), (3, {"w": 1.5})]


def test_the_tower_is_offered_when_the_time_is_over():
    publisher = Publisher()
    _publish(publisher, steps=3, secs=1e-9)
    assert publisher.offers == [(step, {"w": step / 2}) for step in (0, 1, 2, 3, 3)]


@pytest.mark.parametrize(("stops", "seconds"), [(False, 600.0), (True, 10.0)])
def test_the_end_is_waited_for_and_after_a_signal_for_a_part_of_the_grace(stops, seconds):
    publisher = Publisher()
    _publish(publisher, steps=1, secs=1000.0, stops=stops)
    assert publisher.waited == seconds


def test_a_variable_that_only_predictions_have_is_named():
    with pytest.raises(UserError, match="publish: the model predicts with the variable head/bias, which its training"):
        _publish(Publisher(), steps=1, secs=1.0, names=("w", "head/bias"))


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

    def evaluate(session, step):
        time.now += EVALUATION

    clock = Clock()
    time.now += 50  # The start counts for none either.
    with tf.Graph().as_default(), caplog.at_level("INFO"):
        train_op = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        metrics = MetricsHook({}, tf.constant(1.0), [Lines(), StepRate(clock, 2)], clock, every_n_steps=2)
        own = [metrics, EvaluationHook(evaluate, EverySteps(2), clock)]
        begins = StepClockHook(clock)
        with tf1.train.MonitoredSession(hooks=in_order([SessionClockHook(clock), *own, Steps(), begins])) as session:
            for _ in range(7):
                session.run(train_op)
    said = [record.getMessage() for record in caplog.records if record.name.endswith("log_hooks")]
    assert said == ["global_step/sec: 4"] * 3  # of the steps 3, 5 and 7
    assert Lines.rates[1:] == [1 / STEP] * 3  # The first line began before the first step.
    assert begins.seconds == pytest.approx(7 * STEP)
    assert clock.seconds["evaluation"] == 4 * EVALUATION  # after the steps 2, 4 and 6, and at the end
