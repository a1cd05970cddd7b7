"""What a step's time goes to: traced operations by purpose, and phases by a clock that only the test moves."""

import time
import types

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.framework import step_stats_pb2

from ctr_trainer.estimator.built_step import optimizer_step
from ctr_trainer.estimator.hooks import measuring_hooks, profile_hook
from ctr_trainer.estimator.hooks.measuring_hooks import MachineHook, PhaseHook
from ctr_trainer.estimator.hooks.profile_hook import ProfileHook
from ctr_trainer.estimator.run_length import RunLength
from ctr_trainer.models.head import cross_entropy
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.dense_exchange import Exchange
from ctr_trainer.system.measuring import clock as clocks
from ctr_trainer.system.measuring.clock import STEP_TITLES, Clock
from ctr_trainer.system.measuring.latency import no_gpu

tf1 = tf.compat.v1
BEGAN = 1_700_000_000.0


def _stats(*nodes, device="/job:localhost/replica:0/task:0/device:CPU:0"):
    """Returns StepStats of nodes (name, operation, start, end), in microseconds after BEGAN."""
    stats = step_stats_pb2.StepStats()
    found = stats.dev_stats.add(device=device)
    for name, operation, start, end in nodes:
        found.node_stats.add(
            node_name=name,
            timeline_label=f"{name} = {operation}(a, b)",
            all_start_nanos=int(BEGAN * 1e9) + 1000 * start,
            all_end_rel_nanos=1000 * (end - start),
        )
    return stats


@pytest.mark.parametrize(
    ("name", "operation", "expected"),
    [
        ("mlp/dense/MatMul", "MatMul", "forward"),
        ("loss/logistic_loss", "Mul", "loss"),
        ("gradients/loss/mul_grad/Mul", "Mul", "backward"),
        ("gradients_1/mlp/MatMul", "MatMul", "backward"),
        ("ConstantFolding/gradients/mlp/x", "Const", "backward"),
        ("dense_exchange/concat", "ConcatV2", "exchange"),
        ("dense_exchange/HorovodAllreduce_dense_gradients_float32_0", "HorovodAllreduce", "exchange"),
        ("DistributedAdagrad_Allreduce/cond/HorovodAllreduce_grad", "HorovodAllreduce", "exchange"),
        ("dense_update/ResourceApplyAdagrad", "ResourceApplyAdagrad", "dense_update"),
        ("Adam/update_mlp/ResourceApplyAdam", "ResourceApplyAdam", "dense_update"),
        ("AssignAddVariableOp", "AssignAddVariableOp", "dense_update"),
        ("rows/_7", "_HostRecv", "input_to_device"),
        ("MEMCPYHtoD", "MEMCPYHtoD", "input_to_device"),
        ("gru/update/MatMul", "MatMul", "forward"),  # A gate, no optimizer.
    ],
)
def test_an_operation_is_sorted_by_its_scope_and_type(name, operation, expected):
    assert profile_hook.purpose(name, operation) == expected


_EXCHANGE = ("dense_exchange/HorovodAllreduce", "HorovodAllreduce")


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param(
            [("mlp/MatMul", "MatMul", 30, 130), ("gradients/mlp/MatMul", "MatMul", 130, 330)],
            {"input_to_device": 30, "forward": 100, "backward": 200},
            id="the time before the first operation is the input's",
        ),
        pytest.param(
            [("mlp/MatMul", "MatMul", 0, 100), ("gradients/x", "Mul", 60, 100)],
            {"input_to_device": 0, "forward": 80, "backward": 20},
            id="concurrent operations share the time",
        ),
        pytest.param(
            [(*_EXCHANGE, 0, 100), ("mlp/MatMul", "MatMul", 20, 70)],
            {"input_to_device": 0, "exchange": 50, "forward": 50},
            id="an exchange counts only while nothing else runs",
        ),
        pytest.param(
            [
                ("mlp/MatMul", "MatMul", 0, 10),
                ("gradients/x", "Mul", 15, 20),
                (*_EXCHANGE, 20, 50),
                ("dense_update/ResourceApplyAdagrad", "ResourceApplyAdagrad", 60, 65),
            ],
            {"input_to_device": 0, "forward": 10, "backward": 10, "exchange": 40, "dense_update": 5},
            id="a gap belongs to the operation being scheduled or awaited",
        ),
        pytest.param([], {}, id="no operations"),
    ],
)
def test_the_time_of_a_step_is_divided_among_its_operations(nodes, expected):
    found = profile_hook.seconds_by_purpose(_stats(*nodes), BEGAN)
    assert {name: pytest.approx(1e6 * seconds, abs=0.5) for name, seconds in found.items()} == expected


def test_a_gpus_operations_are_counted_once():
    stats = _stats(("mlp/MatMul", "MatMul", 0, 10), device="/device:GPU:0/stream:all")
    stats.MergeFrom(_stats(("mlp/MatMul", "MatMul", 20, 40), device="/device:GPU:0/stream:7"))
    assert profile_hook.seconds_by_purpose(stats, BEGAN)["forward"] == pytest.approx(10e-6, abs=5e-7)


def test_the_packages_own_operations_are_found_in_a_real_trace():
    distributed.init()
    with tf.Graph().as_default():
        x = tf1.placeholder(tf.float32, [4, 3])
        w = tf1.get_variable("w", [3, 1], use_resource=True)
        loss = cross_entropy(tf.ones(4), tf.squeeze(tf.matmul(x, w), 1), tf.ones(4))
        optimizer = tf1.train.GradientDescentOptimizer(0.1)
        step = optimizer_step(
            *(optimizer, loss, tf.constant(4.0), [], tf.constant(0.1)),
            run_length=RunLength(accumulation_steps=2),
            exchange=Exchange("none", ""),
        )
        metadata = tf1.RunMetadata()
        with tf1.Session() as session:
            session.run([tf1.global_variables_initializer(), tf1.local_variables_initializer()])
            options = tf1.RunOptions(trace_level=tf1.RunOptions.SOFTWARE_TRACE)
            session.run(step.train_op, {x: np.ones((4, 3))}, options, metadata)
    purposes = {
        profile_hook.purpose(node.node_name, node.timeline_label.partition("= ")[2].partition("(")[0])
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
    }
    assert {"forward", "loss", "backward", "exchange"} <= purposes


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


def _run(clock, steps, first, last, hooks=()):
    """Returns the ProfileHook of a run whose session takes RUN, and ten times as long in traced steps."""
    done = []

    def work():
        done.append(len(done) + 1)
        return clock.add(10 * RUN if first <= done[-1] <= last else RUN)

    with tf.Graph().as_default():
        worked = tf.numpy_function(work, [], tf.float32, name="mlp/work")
        with tf.control_dependencies([worked]):
            train_op = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        phases = Clock()
        trace = ProfileHook(phases, first, last)
        own = [PhaseHook(phases, "hooks", "hooks"), *hooks, _Logs(clock), trace, PhaseHook(phases, "session", "loop")]
        with tf1.train.MonitoredSession(hooks=own) as session:
            for step in range(1, steps + 1):
                clock.add(LOOP)
                session.run(train_op)
                if step % 2 == 0:
                    with phases.within("sync"):
                        clock.add(SYNC)
    return trace


def test_phases_are_those_of_a_step_that_is_not_traced(clock):
    found = _run(clock, steps=16, first=3, last=7).results()
    assert (found["steps"], found["traced_steps"]) == (9, 4)
    # Of the nine steps after the traced ones, up to the run of the last one, four have a sync; the loop's own time
    # belongs to no phase.
    step = RUN + 4 * SYNC / 9 + LOGS + LOOP
    assert found["step_seconds"] == pytest.approx(step)
    assert found["step_deviation"] == pytest.approx(SYNC * (4 * 5) ** 0.5 / 9)
    assert found["accounted"] == pytest.approx(1 - LOOP / step)
    seconds = found["seconds"]
    assert seconds["sync"] == pytest.approx(4 * SYNC / 9)
    assert seconds["hooks"] == pytest.approx(LOGS)
    inside = [seconds.get(name, 0.0) for name in ("input_to_device", "forward", "dense_update")]
    assert sum(inside) == pytest.approx(RUN)
    assert list(seconds) == [name for name in STEP_TITLES if name in seconds]


def test_a_run_without_a_step_after_the_traced_ones_tells_nothing(clock):
    assert _run(clock, steps=7, first=4, last=7).results() is None


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
    load = MachineHook(Store(), no_gpu, 100, load_from=4)
    _run(clock, 8, 3, 4, [load])
    found = load.load()
    assert found["cpu"] == pytest.approx(2)
    assert found["network"] == {"lo": pytest.approx({"received": 1000, "sent": 10})}
    assert found["service"] == pytest.approx({"cpu": 0.75, "requests": 6})
