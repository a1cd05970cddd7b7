import logging

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.hooks.checkpoint_hook import CheckpointHook
from ctr_trainer.hooks.learning_rate_hook import LearningRateHook
from ctr_trainer.hooks.metrics_hook import MetricsHook
from ctr_trainer.hooks.parameter_sync_hook import ParameterSyncHook
from ctr_trainer.hooks.run_status_hook import RunStatusHook
from ctr_trainer.hooks.summary_hook import SummaryHook
from ctr_trainer.latency import Latency

tf1 = tf.compat.v1


def _run(make_hooks, steps):
    """Runs `steps` steps of a graph that only counts, with the hooks that `make_hooks()` builds in it."""
    with tf.Graph().as_default():
        train_op = tf1.assign_add(tf1.train.get_or_create_global_step(), 1)
        with tf1.train.MonitoredTrainingSession(
            hooks=make_hooks(), log_step_count_steps=None, save_summaries_steps=None
        ) as session:
            for _ in range(steps):
                session.run(train_op)


def _constants(logits, labels, weights):
    values = {"logits": logits, "labels": labels, "weights": weights}
    return {"": {name: tf.constant(value, tf.float32) for name, value in values.items()}}


@pytest.mark.parametrize("periods", [{}, {"every_n_steps": 1, "every_n_secs": 1.0}])
@pytest.mark.parametrize(
    "make",
    [
        lambda periods: RunStatusHook([], **periods),
        lambda periods: LearningRateHook(None, {}, **periods),
        lambda periods: MetricsHook({}, {}, **periods),
        lambda periods: SummaryHook("unused", None, {}, **periods),
    ],
)
def test_a_hook_takes_exactly_one_period(make, periods):
    with pytest.raises(ValueError, match="give one of every_n_steps"):
        make(periods)


def test_metrics_are_logged_in_the_agreed_form_and_padding_is_not_counted(caplog):
    scalars = {}
    with caplog.at_level(logging.INFO):
        _run(lambda: [MetricsHook(_constants([2, 0, 9], [1, 0, 0], [1, 1, 0]), scalars, every_n_steps=2)], steps=4)
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("metrics_hook")]
    assert [line.split("(")[0] for line in lines] == [
        f"step {step}, {figure} "
        for step in (2, 4)
        for figure in (
            "auc = 1.0000",
            "xentropy_mean = 0.41003759",
            "accuracy = 0.5000",
            "prob_mean = 0.69039854",
            "real_mean = 0.50000000",
        )
    ]
    rates = lines[0].split("(")[1].rstrip(")").split("; ")
    per_step = float(rates[1].removesuffix(" examples/sec")) / float(rates[0].removesuffix(" it/sec"))
    assert per_step == pytest.approx(2, rel=0.01)
    assert scalars["auc"] == 1.0


def test_a_windowed_auc_starts_anew(caplog):
    class Flips(tf1.train.SessionRunHook):
        """Right order for the first two steps, wrong from then on."""

        def __init__(self):
            self.step = 0

        def before_run(self, run_context):
            self.step += 1
            return tf1.train.SessionRunArgs(None, {"logits:0": [1.0, 0.0] if self.step <= 2 else [0.0, 1.0]})

    def hooks(window):
        tensors = _constants([0, 0], [1, 0], [1, 1])
        tensors[""]["logits"] = tf1.placeholder(tf.float32, [2], "logits")
        return [Flips(), MetricsHook(tensors, {}, window, every_n_steps=2)]

    def aucs(window):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            _run(lambda: hooks(window), steps=4)
        return [r.getMessage().split(" (")[0] for r in caplog.records if ", auc = " in r.getMessage()]

    assert aucs(0) == ["step 2, auc = 1.0000", "step 4, auc = 0.5000"]
    assert aucs(2) == ["step 2, auc = 1.0000", "step 4, auc = 0.0000"]


@pytest.mark.parametrize(("window", "weight"), [(0, 3), (2, 1), (3, 3)])
def test_the_auc_of_a_run_is_that_of_all_ranks_in_the_last_window(window, weight):
    """This rank has a positive at 0 and a negative at 1, each `weight` times; another, three of each the other way."""
    hooks = []

    def make():
        hooks.append(MetricsHook(_constants([0, 1], [1, 0], [1, 1]), {}, window, every_n_steps=1))
        return hooks

    _run(make, steps=3)

    def all_sum(state, name):
        assert name == "train_auc"
        return state + 3 * (state > 0)[::-1]

    right, tied = 3 * 3, 3 * weight + weight * 3
    assert hooks[0].auc(all_sum)["auc"] == pytest.approx((right + tied / 2) / (weight + 3) ** 2)


def test_learning_rate_line(caplog):
    with caplog.at_level(logging.INFO):
        _run(lambda: [LearningRateHook(tf.constant(0.05), {}, every_n_steps=1)], steps=1)
    assert "current lr: 0.050000" in [record.getMessage() for record in caplog.records]


def test_run_status_reports_each_interval_by_itself(caplog):
    latency = Latency("OpsReadSample")

    class Recording(tf1.train.SessionRunHook):
        def before_run(self, run_context):
            latency.record(100)

    with caplog.at_level(logging.INFO):
        _run(lambda: [Recording(), RunStatusHook([latency], every_n_steps=2)], steps=3)
    lines = [r.getMessage() for r in caplog.records if "RunStatus" in r.getMessage()]
    assert lines == [
        "[RunStatus]: OpsReadSample statistics => count: 2  P50: 100  P95: 100  P99: 100  Max: 100",
        "[RunStatus]: OpsReadSample statistics => count: 1  P50: 100  P95: 100  P99: 100  Max: 100",
    ]
    assert latency.total_seconds == pytest.approx(3e-4)


def test_checkpoints_come_every_n_steps_and_once_at_the_end():
    saved = []
    _run(lambda: [CheckpointHook(lambda session, step: saved.append(step), every_n_steps=2)], steps=5)
    assert saved == [2, 4, 5]
    saved.clear()
    _run(lambda: [CheckpointHook(lambda session, step: saved.append(step), every_n_steps=2)], steps=4)
    assert saved == [2, 4]
    saved.clear()
    _run(lambda: [CheckpointHook(lambda session, step: saved.append(step), every_n_steps=0)], steps=3)
    assert saved == [3]


def test_syncs_come_every_n_steps_and_a_flush_at_the_end():
    class Embeddings:
        sync_seconds = 0.25

        def __init__(self):
            self.calls = []

        def sync(self):
            self.calls.append("sync")

        def flush(self):
            self.calls.append("flush")

        def hit_rate(self):
            return 0.75

    embeddings, scalars, wait = Embeddings(), {}, Latency("OpsSyncWait")
    _run(lambda: [ParameterSyncHook(embeddings, 3, wait, scalars)], steps=7)
    assert embeddings.calls == ["sync", "sync", "flush"]  # after steps 3 and 6, and at the end
    assert wait.count == 2
    assert scalars["cache_hit_rate"] == 0.75
    assert scalars["sync_ms"] == 250


def test_summaries_hold_the_loss_and_what_other_hooks_left(tmp_path):
    scalars = {"auc": 0.5}
    _run(lambda: [SummaryHook(str(tmp_path), tf.constant(0.25), scalars, every_n_steps=2)], steps=4)
    (events,) = tmp_path.iterdir()
    found = {
        (event.step, value.tag): value.simple_value
        for event in tf1.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    # the timer triggers at the first step, then every second one
    assert found[(1, "loss")] == found[(3, "loss")] == 0.25
    assert np.isclose(found[(3, "auc")], 0.5)
