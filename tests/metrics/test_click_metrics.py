"""The metrics of the lines of a training, and their sums over workers."""

import math

import numpy as np
import pytest

from ctr_trainer.metrics import click_metrics
from ctr_trainer.metrics.click_metrics import ClickMetrics, WorkerFigures


def test_means_are_those_of_the_weighted_examples():
    metrics = ClickMetrics()
    metrics.update(np.float32([0, 0, 5]), np.float32([1, 0, 1]), np.float32([1, 1, 0]))
    results = metrics.results()
    assert results["xentropy_mean"] == pytest.approx(math.log(2))
    assert results["prob_mean"] == pytest.approx(0.5)
    assert results["real_mean"] == pytest.approx(0.5)


def test_accuracy_is_the_weighted_share_of_the_examples_on_the_right_side_of_one_half():
    metrics = ClickMetrics()
    # Right, right, wrong, wrong (a probability of exactly 0.5 is not above it); the last does not count.
    logits, labels = np.float32([0.1, -0.1, 2, 0, 5]), np.float32([1, 0, 0, 1, 0])
    metrics.update(logits, labels, np.float32([1, 2, 1, 1, 0]))
    assert metrics.results()["accuracy"] == pytest.approx(3 / 5)
    metrics.update(np.float32([0]), np.float32([0]), np.float32([5]))
    assert metrics.results()["accuracy"] == pytest.approx(8 / 10)


def test_the_accuracy_of_a_logit_that_is_no_number_is_none():
    metrics = ClickMetrics()
    with np.errstate(invalid="ignore"):
        metrics.update(np.float32([np.nan, 1]), np.float32([0, 1]), np.ones(2, np.float32))
        assert math.isnan(metrics.results()["accuracy"])


def test_a_large_logit_does_not_overflow():
    metrics = ClickMetrics()
    with np.errstate(over="raise"):
        metrics.update(np.float32([100, -100]), np.float32([0, 1]), np.ones(2, np.float32))
    assert metrics.results()["xentropy_mean"] == pytest.approx(100)


def test_a_small_probability_keeps_its_digits():
    metrics = ClickMetrics()
    metrics.update(np.float32([-12]), np.float32([0]), np.ones(1, np.float32))
    assert metrics.results()["prob_mean"] == pytest.approx(1 / (1 + math.exp(12)), rel=1e-9)


def _metrics(seed, n=20_000):
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.5, 1.2, n).astype(np.float32)
    labels = (rng.random(n) < 1 / (1 + np.exp(-logits - rng.normal(0, 0.5, n)))).astype(np.float32)
    metrics = ClickMetrics()
    metrics.update(logits, labels, np.ones(n, np.float32))
    return metrics


def test_the_sum_of_two_workers_is_the_line_of_all_their_examples_by_label():
    workers = [{"click": _metrics(seed), "buy": _metrics(10 + seed)} for seed in (1, 2)]
    whole = {"click": _metrics(1), "buy": _metrics(11)}
    for label, first in (("click", 2), ("buy", 12)):
        for part, other in zip(whole[label].parts.values(), _metrics(first).parts.values(), strict=True):
            part.state[:] += other.state
    sums = [
        click_metrics.pack(metrics, loss, weight, WorkerFigures(steps_per_sec=60.0, examples_per_sec=100.0))
        for metrics, loss, weight in zip(workers, (0.5, 0.2), (30, 10), strict=True)
    ]
    line = click_metrics.unpack(sum(sums), ["click", "buy"], 7, "2 workers", WorkerFigures(lr=0.1))
    for label, metrics in whole.items():
        for name, value in metrics.results().items():
            assert line.values[f"{name}/{label}"] == pytest.approx(value, abs=1e-5 if name == "auc" else 1e-12)
    assert line.values["loss"] == pytest.approx((30 * 0.5 + 10 * 0.2) / 40)
    assert (line.step, line.of, line.steps_per_sec, line.examples_per_sec) == (7, "2 workers", 60, 200)
    assert line.figures().items() >= {"lr": 0.1, "examples_per_sec": 200.0}.items()


def test_the_auc_of_coarse_bins_is_within_1e_5_of_that_of_fine_ones():
    for seed in range(5):
        metrics = _metrics(seed, 200_000)
        assert ClickMetrics.results_of(metrics.sums())["auc"] == pytest.approx(metrics.results()["auc"], abs=1e-5)


def test_a_worker_of_padding_alone_adds_nothing():
    some, none = _metrics(3), ClickMetrics()
    none.update(np.zeros(4, np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32))
    own = WorkerFigures(steps_per_sec=1.0, examples_per_sec=8.0)
    sums = click_metrics.pack({"": some}, 0.5, 8.0, own) + click_metrics.pack({"": none}, 0.1, 0.0, own)
    line = click_metrics.unpack(sums, [""], 1, "2 workers", own)
    assert line.values["loss"] == pytest.approx(0.5)
    assert line.values["prob_mean"] == pytest.approx(some.results()["prob_mean"])
