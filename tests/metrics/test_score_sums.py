"""The sums by score: exact for few scores, and within the stated bounds on the worst distributions of many."""

import numba
import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from ctr_trainer.models.metrics import score_sums
from ctr_trainer.models.metrics.auc import average_precision, deciles, roc_auc
from ctr_trainer.models.metrics.click_metrics import ClickMetrics
from ctr_trainer.models.metrics.score_sums import ScoreSums
from tests.metrics.ranks import Ranks

MANY = 300_000


def exact_curves(logits, signed_weights):
    """(AUC, average precision) as scikit-learn computes them; the weights of negative examples have a minus sign."""
    arguments = dict(y_true=signed_weights > 0, y_score=logits, sample_weight=np.abs(signed_weights).astype(np.float64))
    return roc_auc_score(**arguments), average_precision_score(**arguments)


def _clicks(rng, logits, rate):
    z = (logits - logits.mean(dtype=np.float64)) / logits.std(dtype=np.float64)
    return (rng.random(len(logits)) < rate * np.exp(0.5 * z)).astype(np.float32)


def _crowds(rng):
    """Yields (name, logits) of distributions that equal bins of the logit serve badly."""
    normal = rng.normal(size=MANY)
    yield "near each other", (-6.2 + 1e-4 * normal)
    yield "near 0", -25 + normal
    yield "near 1", 25 + normal
    yield "in ascending order", np.sort(normal)
    yield "wide, then narrow", np.concatenate([2 * normal[: MANY // 2], 1e-3 * normal[MANY // 2 :]])
    yield "narrow, then wide", np.concatenate([1e-3 * normal[: MANY // 2], 2 * normal[MANY // 2 :]])
    yield "mostly one score", np.where(normal < 1, 0, normal)


def _added(logits, labels, weights, limit=score_sums.SCORES):
    sums = ScoreSums(limit)
    for part in zip(*(np.array_split(each, 20) for each in (logits, labels, weights)), strict=True):
        sums.update(*part)
    return sums


@pytest.mark.parametrize("rate", [0.002, 0.2])
def test_auc_is_within_1e_5_and_auc_pr_within_1e_4_however_the_scores_crowd(rate):
    rng = np.random.default_rng(7)
    for name, logits in _crowds(rng):
        logits = logits.astype(np.float32)
        labels, weights = _clicks(rng, logits, rate), rng.choice(np.float32([1, 2]), MANY)
        sums = _added(logits, labels, weights).sums
        auc, pr = exact_curves(logits, np.where(labels > 0, weights, -weights))
        assert len(sums) <= score_sums.SCORES
        assert roc_auc(*sums.T[1:3]) == pytest.approx(auc, abs=1e-5), name
        assert average_precision(*sums.T[1:3]) == pytest.approx(pr, abs=1e-4), name
        if name != "mostly one score":
            assert [row["decile"] for row in deciles(sums)] == list(range(1, 11)), name


@pytest.mark.parametrize("base", [-6.2, -30, 30])
def test_few_scores_near_each_other_are_exact_also_on_a_line_of_the_log(base):
    rng = np.random.default_rng(3)
    scores = np.float32([base])
    for _ in range(29):
        scores = np.append(scores, np.nextafter(scores[-1], np.float32(np.inf)))
    logits = scores[rng.integers(0, 30, 40_000)]
    labels, ones = _clicks(rng, logits.astype(np.float64), 0.002), np.ones(40_000, np.float32)
    exact, pr = exact_curves(logits, np.where(labels > 0, ones, -ones))
    metrics, line = ClickMetrics(), ClickMetrics()
    metrics.update(logits, labels, ones)
    line.add_sums(metrics.sums())
    for each in (metrics, line):
        assert each.results()["auc"] == pytest.approx(exact, abs=1e-12)
        assert average_precision(*each.scores.sums.T[1:3]) == pytest.approx(pr, abs=1e-12)
    assert len(deciles(metrics.scores.sums)) == 10


def test_scores_with_many_examples_are_not_grouped_with_rare_ones():
    rng = np.random.default_rng(5)
    common = np.float32([-1, np.nextafter(np.float32(-1), np.float32(0))])[rng.integers(0, 2, 300_000)]
    logits = np.append(common, rng.normal(size=300_000)).astype(np.float32)
    # The greater one of the two common scores always has label 1, the other one never.
    labels = np.append(common > -1, rng.random(300_000) < 0.5).astype(np.float32)
    ones = np.ones_like(logits)
    exact, _ = exact_curves(logits, np.where(labels > 0, ones, -ones))
    assert roc_auc(*_added(logits, labels, ones).sums.T[1:3]) == pytest.approx(exact, abs=1e-5)


def test_workers_with_different_numbers_of_scores_have_the_figures_of_one():
    rng = np.random.default_rng(11)
    logits = rng.normal(-20, 1, MANY).astype(np.float32)
    labels, ones = _clicks(rng, logits, 0.01), np.ones(MANY, np.float32)
    owner = rng.choice([0, 1, 3], MANY, p=[0.9, 0.09, 0.01])  # The third worker has no example.
    exact, _ = exact_curves(logits, np.where(labels > 0, ones, -ones))

    def work(rank, all_sum, all_gather):
        own = _added(*(each[owner == rank] for each in (logits, labels, ones)))
        own.merge(all_gather, "scores")
        return own.sums

    first, *others = Ranks(4).run(work)
    assert all(np.array_equal(first, other) for other in others)
    assert roc_auc(*first.T[1:3]) == pytest.approx(exact, abs=1e-5)
    assert first[:, 1:3].sum() == MANY


def test_weights_of_many_powers_of_ten_keep_the_number_of_scores_bounded():
    weights = np.float32(10.0) ** -np.linspace(0, 37, 20_000, dtype=np.float32)
    sums = _added(np.arange(20_000, dtype=np.float32), np.float32(np.arange(20_000) % 2), weights, limit=1000).sums
    assert len(sums) <= 1000
    assert sums[:, 1:3].sum() == pytest.approx(weights.sum(dtype=np.float64), rel=1e-6)


def test_what_an_update_runs_is_compiled_when_the_sums_are_made(monkeypatch):
    names = "_merge", "_group"
    for name in names:
        monkeypatch.setattr(score_sums, name, numba.njit(getattr(score_sums, name).py_func))
    sums = ScoreSums(limit=2)
    compiled = [len(getattr(score_sums, name).signatures) for name in names]
    sums.update(*np.arange(12, dtype=np.float32).reshape(3, 4))
    assert len(sums.sums) <= 2
    assert [len(getattr(score_sums, name).signatures) for name in names] == compiled == [1, 1]
