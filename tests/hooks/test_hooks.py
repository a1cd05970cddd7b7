import functools
import logging
import re

import numpy as np
import pytest
import tensorflow as tf

from ctr_trainer.embedding.table.cold_rows import STATS
from ctr_trainer.estimator.hooks.log_hooks import MetricLines, MetricsFile, Summaries, TrainingProgress
from ctr_trainer.estimator.hooks.measuring_hooks import RunStatusHook, ServiceStatus
from ctr_trainer.estimator.hooks.metrics_hook import EventWindows, LineTaker, MetricsHook
from ctr_trainer.estimator.run_length import EverySeconds, RunLength
from ctr_trainer.models.metrics import click_metrics
from ctr_trainer.models.metrics.click_metrics import ClickMetrics, Line, WorkerFigures, metric_name
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.measuring.latency import Latency
from tests.metrics.ranks import Ranks

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


def _running():
    """Returns a Clock whose training has begun."""
    clock = Clock()
    clock.enter("hooks")
    return clock


def _constants(logits, labels, weights):
    values = {"logits": logits, "labels": labels, "weights": weights}
    return {"": {name: tf.constant(value, tf.float32) for name, value in values.items()}}


class Lines(LineTaker):
    """Keeps the lines of the training."""

    def __init__(self):
        self.taken = []

    def take(self, line):
        self.taken.append(line)


@pytest.mark.parametrize(("weight", "sums"), [(0.0, [0, 0]), (8.0, [40, 8])])
def test_the_loss_of_a_model_without_logits_counts_as_its_batch_does(weight, sums):
    packed = []

    def merge(vector):
        packed.append(vector)
        return vector[None], ""

    def hooks():
        return [MetricsHook({}, tf.constant(5.0), [], _running(), 1, merge, tf.constant(weight))]

    _run(hooks, steps=1)
    assert [list(each[:2]) for each in packed] == [sums]


def test_metrics_are_logged_in_the_agreed_form_and_padding_is_not_counted(caplog):
    kept = Lines()

    def hooks():
        tensors, loss = _constants([2, 0, 9], [1, 0, 0], [1, 1, 0]), tf.constant(0.75)
        takers, lr = [MetricLines(), kept], tf.constant(0.5)
        return [MetricsHook(tensors, loss, takers, _running(), every_n_steps=2, learning_rate=lr)]

    with caplog.at_level(logging.INFO):
        _run(hooks, steps=4)
    lines = [record.getMessage() for record in caplog.records if record.name.endswith("log_hooks")]
    lines = [line for line in lines if line.startswith("step")]
    assert [line.split("(")[0] for line in lines] == [
        f"step {step}, {figure} "
        for step in (2, 4)
        for figure in (
            "auc = 1.0000",
            "xentropy_mean = 0.41003760",
            "accuracy = 1.0000",
            "prob_mean = 0.69039854",
            "real_mean = 0.50000000",
        )
    ]
    rates = lines[0].split("(")[1].rstrip(")").split("; ")
    per_step = float(rates[1].removesuffix(" examples/sec")) / float(rates[0].removesuffix(" it/sec"))
    assert per_step == pytest.approx(2, rel=0.01)
    assert [line.step for line in kept.taken] == [2, 4]
    figures = kept.taken[1].figures()
    assert (figures["auc"], figures["loss"], figures["lr"]) == (1.0, 0.75, 0.5)
    assert figures["examples_per_sec"] == kept.taken[1].examples_per_sec


def test_a_model_without_logits_logs_its_loss_and_no_examples(caplog):
    kept = Lines()
    with caplog.at_level(logging.INFO):
        takers, loss = [MetricLines(), kept], 0.28447193
        _run(lambda: [MetricsHook({}, tf.constant(loss), takers, _running(), every_n_steps=1)], steps=1)
    line, _ = [record.getMessage() for record in caplog.records if record.name.endswith("log_hooks")]
    assert re.fullmatch(r"step 1, loss = 0\.28447193 \(\d+\.\d it/sec\)", line)
    assert "examples_per_sec" not in kept.taken[0].figures()


def _merged(size, steps=3):
    """Runs a `MetricsHook` on each rank; rank 0 alone scores its examples right. -> by rank, the lines."""

    def work(rank, all_sum, all_gather):
        kept, logit = Lines(), 1.0 if rank == 0 else -1.0

        def merge(vector):
            of_all = all_gather(vector, "f").reshape(size, -1)
            return (vector[None], f"rank {rank}") if rank else (of_all, f"{size} workers")

        def hooks():
            # Rank 0 has two examples a step, the others one of the weight 2 and one of padding.
            weights = [1, 1] if rank == 0 else [0, 2]
            tensors = _constants([-logit, logit], [0, 1], weights)
            own = functools.partial(WorkerFigures, sync_ms=float(rank), hits=8 + rank, misses=1)
            loss = tf.constant(float(rank))
            return [MetricsHook(tensors, loss, [kept], _running(), 2, merge, own=own)]

        _run(hooks, steps)
        return kept.taken

    return Ranks(size).run(work)


def test_rank_0_has_the_figures_of_all_workers_and_each_other_rank_its_own():
    zero, one = _merged(2)
    assert [(line.step, line.of) for line in zero] == [(2, "2 workers"), (3, "2 workers")]
    assert [(line.step, line.of) for line in one] == [(2, "rank 1"), (3, "rank 1")]
    # Of rank 0 a negative of weight 1 at -1 and a positive of weight 1 at 1; of rank 1 a positive of weight 2 at -1.
    assert zero[0].values["auc"] == pytest.approx((1 * 1 + 2 * 0.5) / 3)
    assert zero[0].values["real_mean"] == pytest.approx(3 / 4)
    assert zero[0].values["accuracy"] == pytest.approx(2 / 4)
    right, wrong = np.log1p(np.exp(-1)), np.log1p(np.exp(1))
    assert zero[1].values["xentropy_mean"] == pytest.approx((right + wrong) / 2)
    assert one[1].values["xentropy_mean"] == pytest.approx(wrong)
    # The losses 0 and 1 count by the weights of their batches, 2 and 2; examples are counted, not weighed.
    assert (zero[0].values["loss"], one[0].values["loss"]) == (0.5, 1.0)
    assert (zero[0].figures()["sync_ms"], one[0].figures()["sync_ms"]) == (0.0, 1.0)
    # Of 9 and 10 keys looked up, the ranks had to ask for one each.
    assert (zero[0].cache_hit_rate, one[0].cache_hit_rate) == (pytest.approx(17 / 19), 0.9)
    per_step = zero[0].examples_per_sec / zero[0].steps_per_sec
    assert 2 <= per_step <= 4  # 2 + 1, of ranks that need not be equally fast


class Flips(tf1.train.SessionRunHook):
    """Right order for the first two steps, wrong for the next two, then only examples of weight 0."""

    def __init__(self):
        self.step = 0

    def before_run(self, run_context):
        self.step += 1
        logits, weights = [1.0, 0.0] if self.step <= 2 else [0.0, 1.0], [float(self.step <= 4)] * 2
        return tf1.train.SessionRunArgs(None, {"logits:0": logits, "weights:0": weights})


def _flipping(steps, **arguments):
    """Returns the log lines of this number of steps with `Flips`."""
    kept = Lines()

    def hooks():
        tensors = _constants([0, 0], [1, 0], [1, 1])
        tensors[""] |= {name: tf1.placeholder(tf.float32, [2], name) for name in ("logits", "weights")}
        takers = [MetricLines(), kept]
        return [Flips(), MetricsHook(tensors, tf.constant(0.0), takers, _running(), every_n_steps=2, **arguments)]

    _run(hooks, steps=steps)
    return kept.taken


def test_window_lines_have_the_auc_and_copc_since_the_previous_line():
    first, second, empty = _flipping(6, of_windows=True)
    assert (first.values["auc_window"], second.values["auc_window"]) == (1.0, 0.0)
    assert (first.values["auc"], second.values["auc"]) == (1.0, 0.5)  # Of all steps since the start.
    mean = (1 / (1 + np.exp(-1)) + 0.5) / 2
    assert second.values["copc"] == pytest.approx(0.5 / mean)
    assert set(empty.values) == {"auc"}  # No means of no examples.


def test_a_window_of_event_time_has_all_lines_since_the_previous_window():
    times = iter([0.0, 110.0, 120.0, 205.0, 480.0])
    lines = _flipping(10, of_windows=True, event_windows=EventWindows(lambda: next(times), 100.0))
    assert ["auc_event_window" in line.values for line in lines] == [False, False, False, True, False]
    window = lines[3].values
    assert window["auc_event_window"] == 0.5 == lines[1].values["auc"]
    assert window["copc_event_window"] == pytest.approx(0.5 / ((1 / (1 + np.exp(-1)) + 0.5) / 2))
    means = [line.values["xentropy_mean"] for line in lines[:2]]
    assert window["xentropy_event_window"] == pytest.approx(np.mean(means))


def test_the_auc_of_a_run_is_of_all_examples_of_all_ranks():
    """This rank has a positive at 0 and a negative at 1, each three times; another, three of each the other way."""
    hooks = []

    def merge(vector):
        other = ClickMetrics()
        other.update(np.float32([0, 1]), np.float32([0, 1]), np.ones(2, np.float32))
        other = click_metrics.pack({"": other}, 0.0, 2.0, WorkerFigures(steps_per_sec=1.0, examples_per_sec=2.0))
        return np.stack([vector, other]), "2 workers"

    def make():
        tensors = _constants([0, 1], [1, 0], [1, 1])
        hooks.append(MetricsHook(tensors, tf.constant(0.0), [], _running(), 1, merge))
        return hooks

    _run(make, steps=3)
    right, tied = 3 * 3, 3 * 3 + 3 * 3
    assert hooks[0].auc()["auc"] == pytest.approx((right + tied / 2) / 6**2)


def _line(workers, of, label=""):
    own = WorkerFigures(lr=0.05, steps_per_sec=63.9, examples_per_sec=65430.9)
    values = {metric_name(name, label): value for name, value in {"auc": 0.6706, "xentropy_mean": 0.41}.items()}
    return Line(2800, of, {**values, "loss": 0.4}, 63.8, 124878.3 if workers > 1 else 65430.9, own, workers=workers)


@pytest.mark.parametrize(
    ("names", "line", "shown", "pace"),
    [
        ("plain", _line(1, ""), ("auc", "xentropy_mean"), "(63.9 it/sec; 65430.9 examples/sec)"),
        (
            *("plain", _line(2, "2 workers"), ("auc", "xentropy_mean")),
            "(63.9 it/sec; 65430.9 examples/sec; 124878.3 of 2 workers)",
        ),
        ("plain", _line(1, "rank 1"), ("auc", "xentropy_mean"), "(63.9 it/sec; 65430.9 examples/sec) of rank 1"),
        ("graph", _line(2, "2 workers"), ("auc", "xentropy_mean:0"), "(63.9 it/sec; 65430.9 examples/sec)"),
        ("graph", _line(1, "rank 1"), ("auc", "xentropy_mean:0"), "(63.9 it/sec; 65430.9 examples/sec)"),
        (
            *("graph", _line(1, "", "click"), ("auc/click", "xentropy_mean/click:0")),
            "(63.9 it/sec; 65430.9 examples/sec)",
        ),
    ],
)
def test_a_line_has_the_rates_of_this_worker_and_of_all(caplog, names, line, shown, pace):
    with caplog.at_level(logging.INFO):
        MetricLines(names).take(line)
    figures = [
        f"step 2800, {name} = {value} {pace}" for name, value in zip(shown, ("0.6706", "0.41000000"), strict=True)
    ]
    said = [re.sub(r"^[\d-]{10} [\d:]{8}\.\d{6}: ", "", message) for message in caplog.messages]
    assert said == [*figures, "current lr: 0.050000", "global_step/sec: 63.9"]
    assert [message != text for message, text in zip(caplog.messages, said, strict=True)] == [
        *[names == "graph"] * 2,
        *[False] * 2,
    ]


class Recording(tf1.train.SessionRunHook):
    """Records 100 microseconds at each step, of which each takes a second."""

    def __init__(self, latency):
        self._latency, self.now = latency, 0

    def before_run(self, run_context):
        self._latency.record(100)
        self.now += 1


def test_run_status_reports_each_interval_by_itself(caplog):
    latency = Latency("OpsReadSample")
    steps = Recording(latency)
    with caplog.at_level(logging.INFO):
        _run(lambda: [steps, RunStatusHook([latency], EverySeconds(2, lambda: steps.now))], steps=3)
    lines = [r.getMessage() for r in caplog.records if "RunStatus" in r.getMessage()]
    assert lines.pop(0).startswith("[RunStatus]: all in microseconds")
    assert lines == [
        "[RunStatus]: OpsReadSample statistics => count: 2  P50: 100  P95: 100  P99: 100  Max: 100",
        "[RunStatus]: OpsReadSample statistics => count: 1  P50: 100  P95: 100  P99: 100  Max: 100",
    ]
    assert latency.total_seconds == pytest.approx(3e-4)


def test_the_service_s_lines_come_with_the_others_but_not_at_the_end_of_a_rank(caplog):
    """Other ranks may still use the service then; `run_summary.measured` logs the last lines when all have ended."""

    class Service:
        def __init__(self):
            self.asked = 0

        def lines(self):
            self.asked += 1
            return [f"[RunStatus]: PsPushGrad {self.asked}"]

        def summarize(self, step):
            summarized.append(step)

    summarized = []
    steps, others = Recording(Latency("OpsReadSample")), [lambda: "published"]
    period = EverySeconds(2, lambda: steps.now)
    with caplog.at_level(logging.INFO):
        _run(lambda: [steps, RunStatusHook([], period, others, Service())], steps=5)
    said = [line for line in caplog.messages if "Ps" in line or line == "published"]
    assert said == ["published", "[RunStatus]: PsPushGrad 1", "published", "[RunStatus]: PsPushGrad 2", "published"]
    assert len(summarized) == 2


def test_tensorboard_shows_the_rows_on_disk(tmp_path):
    class OfStore:
        def stats(self):
            return {"tables": {"t": dict.fromkeys(STATS, 5) | {"rows": 7}, "in_memory": {"rows": 9}}}

    status = ServiceStatus(OfStore(), directory=str(tmp_path))
    assert "rows in memory: 2  on disk: 5" in status.lines()[0]
    with tf.Graph().as_default():  # As in a training.
        status.summarize(3)
        tf1.summary.FileWriterCache.get(str(tmp_path)).close()
    (events,) = tmp_path.iterdir()
    shown = {
        (event.step, each.tag, each.simple_value)
        for event in tf1.train.summary_iterator(str(events))
        for each in event.summary.value
    }
    assert shown == {(3, "t/rows", 7), *((3, f"t/{name}", 5) for name in STATS)}


def test_a_training_whose_session_cannot_be_made_closes_what_has_not_started(tmp_path):
    takers = [MetricLines(), MetricsFile(str(tmp_path)), Summaries(str(tmp_path), every_n_steps=2)]
    takers += [TrainingProgress(Clock(), RunLength(last=9))]
    for taker in takers:
        taker.close()
    assert not list(tmp_path.iterdir())


def test_summaries_hold_the_figures_of_the_lines_that_are_due(tmp_path):
    def hooks():
        summaries = Summaries(str(tmp_path), every_n_steps=2)
        tensors = _constants([0, 0], [1, 0], [1, 1])
        lr = tf.constant(0.5)
        return [MetricsHook(tensors, tf.constant(0.25), [summaries], _running(), every_n_steps=1, learning_rate=lr)]

    _run(hooks, steps=4)
    (events,) = tmp_path.iterdir()
    found = {
        (event.step, value.tag): value.simple_value
        for event in tf1.train.summary_iterator(str(events))
        for value in event.summary.value
    }
    # the first line, then every second one
    assert {step for step, tag in found if tag == "loss"} == {1, 3}
    assert found[(1, "loss")] == found[(3, "loss")] == 0.25
    assert (found[(3, "auc")], found[(3, "lr")]) == (0.5, 0.5)
