"""The metrics of the lines of a training and their sums over workers, the AUC, and the table of deciles."""

import math

import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from ctr_trainer.models.metrics import click_metrics
from ctr_trainer.models.metrics.auc import deciles, roc_auc
from ctr_trainer.models.metrics.click_metrics import ClickMetrics, WorkerFigures
from ctr_trainer.models.metrics.score_sums import ScoreSums


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
        other = _metrics(first)
        whole[label].scores.add(other.scores.sums)
        for name, mean in whole[label].means.items():
            mean.state += other.means[name].state
    sums = [
        click_metrics.pack(metrics, loss, weight, WorkerFigures(steps_per_sec=60.0, examples_per_sec=100.0))
        for metrics, loss, weight in zip(workers, (0.5, 0.2), (30, 10), strict=True)
    ]
    line, _ = click_metrics.unpack(np.stack(sums), ["click", "buy"], 7, "2 workers", WorkerFigures(lr=0.1))
    for label, metrics in whole.items():
        for name, value in metrics.results().items():
            assert line.values[f"{name}/{label}"] == pytest.approx(value, abs=1e-5 if name == "auc" else 1e-12)
    assert line.values["loss"] == pytest.approx((30 * 0.5 + 10 * 0.2) / 40)
    assert (line.step, line.of, line.steps_per_sec, line.examples_per_sec) == (7, "2 workers", 60, 200)
    assert line.figures().items() >= {"lr": 0.1, "examples_per_sec": 200.0}.items()


def test_the_auc_of_a_line_is_within_1e_5_of_that_of_all_its_scores():
    for seed in range(5):
        metrics, line = _metrics(seed, 100_000), ClickMetrics()
        line.add_sums(metrics.sums())
        assert line.results()["auc"] == pytest.approx(metrics.results()["auc"], abs=1e-5)


def test_a_worker_of_padding_alone_adds_nothing():
    some, none = _metrics(3), ClickMetrics()
    none.update(np.zeros(4, np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32))
    own = WorkerFigures(steps_per_sec=1.0, examples_per_sec=8.0)
    sums = [click_metrics.pack({"": some}, 0.5, 8.0, own), click_metrics.pack({"": none}, 0.1, 0.0, own)]
    line, _ = click_metrics.unpack(np.stack(sums), [""], 1, "2 workers", own)
    assert line.values["loss"] == pytest.approx(0.5)
    assert line.values["prob_mean"] == pytest.approx(some.results()["prob_mean"])


def _scores(logits, labels, weights=None):
    scores = ScoreSums()
    logits, labels = np.float32(logits), np.float32(labels)
    scores.update(logits, labels, np.ones_like(logits) if weights is None else np.float32(weights))
    return scores.sums


def _auc(logits, labels, weights=None):
    return roc_auc(*_scores(logits, labels, weights).T[1:3])


def test_infinite_scores_count_at_their_ends():
    assert _auc([np.inf, 1e9, -np.inf, -1e9], [1, 1, 0, 0]) == 1.0


def _table(*examples):
    return deciles(_scores(*examples))


def test_deciles_are_scikit_learns_quantile_bins():
    rng = np.random.default_rng(0)
    logits = rng.permutation(np.linspace(-6, 3, 1000))
    probabilities = 1 / (1 + np.exp(-logits))
    labels = (rng.random(1000) < probabilities).astype(float)
    real, predicted = calibration_curve(labels, probabilities, n_bins=10, strategy="quantile")
    rows = _table(logits, labels)
    assert [row["decile"] for row in rows] == list(range(1, 11))
    assert [row["weight"] for row in rows] == [100] * 10
    assert [row["real_mean"] for row in rows] == pytest.approx(real)
    assert [row["prob_mean"] for row in rows] == pytest.approx(predicted, abs=1e-6)
    assert [row["copc"] for row in rows] == pytest.approx(real / predicted, rel=1e-5)


def test_ties_stay_in_one_decile():
    assert _table([0, 0, 0, 0], [1, 0, 0, 1]) == [dict(decile=6, weight=4, prob_mean=0.5, real_mean=0.5, copc=1.0)]


def test_deciles_are_of_the_weights():
    # Of weight 10 in all, the first example is the lower half: its middle, 2.5, is in the third decile.
    rows = _table([-1, 0, 1], [0, 1, 1], [5, 3, 2])
    assert [(row["decile"], row["weight"]) for row in rows] == [(3, 5), (7, 3), (10, 2)]


def test_without_examples_there_is_no_row():
    assert _table([], []) == []
    assert _table([1, 2], [1, 0], [0, 0]) == []
