"""Each metric against scikit-learn, on random and on degenerate data, on one and on several workers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, average_precision_score, brier_score_loss, log_loss, roc_auc_score

from ctr_trainer.models.metrics.evaluation_metrics import EvaluationMetrics
from tests.metrics.ranks import Ranks


def _sigmoid(logits):
    return 1 / (1 + np.exp(-np.float64(logits)))


def _filled(logits, labels, weights, groups):
    metrics = EvaluationMetrics([""], grouped=True)
    metrics.update("", logits, labels, weights, groups)
    return metrics


def _random(seed, n, users=20):
    rng = np.random.default_rng(seed)
    logits = rng.normal(-1.5, 1.2, n).astype(np.float32)
    labels = (rng.random(n) < _sigmoid(logits + rng.normal(0, 0.5, n))).astype(np.float32)
    return logits, labels, rng.uniform(0.5, 3, n).astype(np.float32), rng.integers(1, users + 1, n)


def _sklearn(logits, labels, weights, groups):
    """The same figures as scikit-learn gives them."""
    p, total = _sigmoid(logits), weights.sum(dtype=np.float64)
    mean = np.dot(labels, weights) / total
    by_group, left_out = [], 0
    for group in np.unique(groups[weights > 0]):
        own = (groups == group) & (weights > 0)
        if len(np.unique(labels[own])) == 2:
            auc = roc_auc_score(labels[own], logits[own], sample_weight=weights[own])
            by_group.append((auc, weights[own].sum(dtype=np.float64)))
        else:
            left_out += 1
    logloss = log_loss(labels, p, sample_weight=weights, labels=[0, 1])
    entropy = log_loss(labels, np.full(len(labels), mean), sample_weight=weights, labels=[0, 1])
    return {
        "auc": roc_auc_score(labels, logits, sample_weight=weights),
        "auc_pr": average_precision_score(labels, logits, sample_weight=weights),
        "accuracy": accuracy_score(labels, p > 0.5, sample_weight=weights),
        "logloss": logloss,
        "normalized_entropy": logloss / entropy,
        "brier": brier_score_loss(labels, p, sample_weight=weights),
        "copc": np.dot(labels, weights) / np.dot(p, weights),
        "prob_mean": np.dot(p, weights) / total,
        "real_mean": mean,
        "gauc": np.average([a for a, _ in by_group], weights=[w for _, w in by_group]) if by_group else np.nan,
        "gauc_groups": len(by_group),
        "gauc_groups_left_out": left_out,
    }


def test_every_metric_is_scikit_learns_on_random_data():
    data = _random(0, 5000)
    assert _filled(*data).results() == pytest.approx(_sklearn(*data), abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([-3.0, -1.0, -0.5, 0.0, 0.25, 2.0]),  # so few that most are ties
            st.sampled_from([0.0, 1.0]),
            st.sampled_from([0.0, 1.0, 2.5]),
            st.integers(1, 4),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_ties_zero_weights_one_class_and_small_groups_are_scikit_learns_or_nan(examples):
    logits, labels, weights, groups = (np.array(column) for column in zip(*examples, strict=True))
    logits, labels, weights = (np.float32(column) for column in (logits, labels, weights))
    results = _filled(logits, labels, weights, groups).results()
    there = weights > 0
    if len(np.unique(labels[there])) == 2:
        expected = _sklearn(logits, labels, weights, groups)
        assert results == pytest.approx(expected, abs=1e-6, nan_ok=True)
        return
    for name in ("auc", "normalized_entropy", "gauc"):
        assert np.isnan(results[name])
    assert results["gauc_groups"] == 0
    assert results["gauc_groups_left_out"] == len(np.unique(groups[there]))
    if not there.any():
        assert all(np.isnan(value) for name, value in results.items() if not name.startswith("gauc_"))
        return
    assert results["auc_pr"] == pytest.approx(1.0) if labels[there].any() else np.isnan(results["auc_pr"])
    expected = log_loss(labels[there], _sigmoid(logits[there]), sample_weight=weights[there], labels=[0, 1])
    assert results["logloss"] == pytest.approx(expected, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(2, 4))
def test_n_workers_agree_with_one_wherever_an_example_is(seed, size):
    rng = np.random.default_rng(seed)
    data = _random(seed, 200, users=15)
    owner = rng.integers(0, size, 200)
    owner[owner == 1] = rng.choice([0, 1], (owner == 1).sum()) if seed % 2 else 0  # often a worker has no example

    def work(rank, all_sum, all_gather):
        metrics = EvaluationMetrics(["click", "buy"], grouped=True)
        own = [column[owner == rank] for column in data]
        metrics.update("click", *own)
        metrics.update("buy", own[0], 1 - own[1], *own[2:])
        metrics.merge(all_sum, all_gather)
        return metrics.results(), metrics.reliability()

    one = EvaluationMetrics(["click", "buy"], grouped=True)
    one.update("click", *data)
    one.update("buy", data[0], 1 - data[1], *data[2:])
    for results, reliability in Ranks(size).run(work):
        assert results == pytest.approx(one.results(), abs=1e-6, nan_ok=True)
        assert list(reliability) == ["click", "buy"]
        for label, rows in one.reliability().items():
            assert [row["decile"] for row in reliability[label]] == [row["decile"] for row in rows]
            for mine, whole in zip(reliability[label], rows, strict=True):
                assert mine == pytest.approx(whole, abs=1e-6)


def test_examples_without_a_group_do_not_count_in_gauc():
    """Two users are ranked well, and as many examples without a user inversely."""
    labels, groups = np.float32([0, 1, 0, 1, 0, 1, 0, 1]), np.array([7, 7, 8, 8, 0, 0, 0, 0])
    results = _filled(np.where(groups, labels, 1 - labels), labels, np.ones(8, np.float32), groups).results()
    assert (results["gauc"], results["gauc_groups"], results["gauc_groups_left_out"]) == (1.0, 2, 0)


def test_metrics_of_several_labels_have_their_names_and_are_apart():
    metrics = EvaluationMetrics(["click", "buy"])
    ones = np.ones(2, np.float32)
    metrics.update("click", np.float32([1, -1]), np.float32([1, 0]), ones)
    metrics.update("buy", np.float32([1, -1]), np.float32([0, 1]), ones)
    results = metrics.results()
    assert (results["auc/click"], results["auc/buy"]) == (1.0, 0.0)
    assert {name.split("/")[1] for name in results} == {"click", "buy"}


def test_a_logit_that_is_no_number_makes_the_metrics_nan_and_not_wrong():
    data = _random(2, 50)
    data[0][7] = np.nan
    with np.errstate(invalid="ignore"):
        metrics = _filled(*data)
        results = metrics.results()
    assert all(np.isnan(results[name]) for name in ("auc", "auc_pr", "accuracy", "logloss", "brier", "copc", "gauc"))
    assert metrics.reliability() == {"": []}
