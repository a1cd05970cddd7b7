"""`it/sec` and `global_step/sec` are of one time, by a clock that only the test moves."""

import types

import pytest
import tensorflow as tf

from ctr_trainer.estimator.hooks.log_hooks import StepRate
from ctr_trainer.estimator.hooks.measuring_hooks import SessionClockHook, StepClockHook
from ctr_trainer.estimator.hooks.metrics_hook import LineTaker, MetricsHook
from ctr_trainer.estimator.hooks.periods import EverySteps
from ctr_trainer.estimator.hooks.saving_hooks import EvaluationHook
from ctr_trainer.estimator.hooks.step_hook import in_order
from ctr_trainer.system.measuring import clock as clocks
from ctr_trainer.system.measuring.clock import Clock

tf1 = tf.compat.v1
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
