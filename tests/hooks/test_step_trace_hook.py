"""What a step's time goes to, by a clock that only the test moves."""

import time
import types

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.hooks import measuring_hooks
from ctr_trainer.hooks.measuring_hooks import LoadHook, SessionClockHook, StepClockHook
from ctr_trainer.hooks.step_hook import in_order
from ctr_trainer.hooks.step_trace_hook import StepTraceHook
from ctr_trainer.hooks.sync_hooks import RowSyncHook
from ctr_trainer.measuring import clock as clocks
from ctr_trainer.measuring.clock import Clock
from ctr_trainer.measuring.phases import STEP_TITLES

tf1 = tf.compat.v1
RUN, SYNC, LOGS, LOOP = 8.0, 3.0, 1.0, 0.5


class _Clock:
    def __init__(self):
        self.now = 100.0

    def perf_counter(self):
        return self.now

    def add(self, seconds):
        self.now += seconds
        return np.float32(0)


@pytest.fixture
def clock(monkeypatch):
    found = _Clock()
    fake = types.SimpleNamespace(perf_counter=found.perf_counter, time=time.time, process_time=lambda: 2 * found.now)
    for module in (clocks, measuring_hooks):
        monkeypatch.setattr(module, "time", fake)
    return found


class _Logs(tf1.train.SessionRunHook):
    def __init__(self, clock):
        self._clock = clock

    def after_run(self, run_context, run_values):
        self._clock.add(LOGS)


def _run(clock, steps, every, hooks=()):
    """-> the StepTraceHook of a run whose session takes RUN, and in traced steps ten times as long."""
    done = []

    def work():
        traced = (len(done) + 1) % every == 0
        done.append(traced)
        return clock.add(10 * RUN if traced else RUN)

    class Embeddings:
        def look(self):
            pass

        def sync(self):
            clock.add(SYNC)

        def flush(self):
            pass

    with tf.Graph().as_default():
        worked = tf.numpy_function(work, [], tf.float32, name="mlp/work")
        with tf.control_dependencies([worked]):
            train_op = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        phases = Clock()
        trace, sync = StepTraceHook(phases, every, every), RowSyncHook(Embeddings(), 2, clock=phases)
        own = [SessionClockHook(phases), trace, _Logs(clock), sync, StepClockHook(phases)]
        with tf1.train.MonitoredSession(hooks=in_order([*hooks, *own])) as session:
            for _ in range(steps):
                clock.add(LOOP)
                session.run(train_op)
    return trace


def test_phases_are_those_of_a_step_that_is_not_traced(clock):
    found = _run(clock, steps=16, every=4).results()
    assert (found["steps"], found["traced_steps"]) == (12, 3)
    # A sync every second step; the loop's own time belongs to no phase.
    step = RUN + SYNC / 2 + LOGS + LOOP
    assert found["step_seconds"] == pytest.approx(step)
    # Three of the nine steps without a trace have a sync.
    assert found["step_deviation"] == pytest.approx(SYNC * (2 / 9) ** 0.5)
    assert found["accounted"] == pytest.approx(1 - LOOP / step)
    seconds = found["seconds"]
    assert seconds["sync"] == pytest.approx(SYNC / 2)
    assert seconds["hooks"] == pytest.approx(LOGS)
    inside = [seconds.get(name, 0.0) for name in ("input_to_device", "forward", "dense_update")]
    assert sum(inside) == pytest.approx(RUN)
    assert list(seconds) == [name for name in STEP_TITLES if name in seconds]


def test_a_run_without_a_traced_step_that_counts_tells_nothing(clock):
    assert _run(clock, steps=7, every=4).results() is None


def test_every_step_cannot_be_traced():
    with pytest.raises(ValueError, match="at least 2"):
        StepTraceHook(None, 1, 20)


def test_load_is_counted_by_second_from_the_first_step_that_counts(clock, monkeypatch):
    class Store:
        def stats(self):
            services = {
                "a:1": {"cpu_seconds": 0.5 * clock.now, "requests": {"pull": 4 * clock.now, "sync": clock.now}},
                "a:2": {"cpu_seconds": 0.25 * clock.now, "requests": {"pull": clock.now}},
            }
            return {"tables": {}, "services": services}

    def counters(pernic):
        assert pernic
        used = types.SimpleNamespace(bytes_recv=1000 * clock.now, bytes_sent=10 * clock.now)
        return {"lo": used, "eth0": types.SimpleNamespace(bytes_recv=7, bytes_sent=7)}

    monkeypatch.setattr(measuring_hooks.psutil, "net_io_counters", counters)
    load = LoadHook(Store(), 4)
    _run(clock, 8, 4, [load])
    found = load.results()
    assert found["cpu"] == pytest.approx(2)
    assert found["network"] == {"lo": pytest.approx({"received": 1000, "sent": 10})}
    assert found["service"] == pytest.approx({"cpu": 0.75, "requests": 6})


def test_load_of_a_run_that_is_too_short_is_not_known(clock):
    class Store:
        def stats(self):
            return {"tables": {}}

    load = LoadHook(Store(), 9)
    _run(clock, 4, 4, [load])
    assert load.results() is None
