"""The AUC of all examples, and the table of deciles."""

import numba
import numpy as np
import pytest
from sklearn.calibration import calibration_curve

from ctr_trainer.metrics import auc
from ctr_trainer.metrics.auc import AUC, Reliability


def _auc(logits, labels, weights=None):
    metric = AUC()
    logits, labels = np.float32(logits), np.float32(labels)
    metric.update(logits, labels, np.ones_like(logits) if weights is None else np.float32(weights))
    return metric


def test_counts_pairs_in_the_right_order_and_ties_as_half():
    # pairs (positive, negative): (2, 1) right, (2, 2) tie, (0, 1) wrong, (0, 2) wrong -> 1.5 of 4
    assert _auc([2, 0, 1, 2], [1, 1, 0, 0]).result() == pytest.approx(1.5 / 4)


def test_is_undefined_for_one_class():
    assert np.isnan(_auc([1, 2], [1, 1]).result())


def test_ignores_padding():
    assert _auc([3, 1, 2], [1, 0, 0], [1, 1, 0]).result() == 1.0


def test_counts_a_weight_of_two_as_two_examples():
    twice = _auc([1, 2, 0, 3], [1, 1, 0, 0], [2, 1, 1, 1])
    assert twice.result() == pytest.approx(_auc([1, 1, 2, 0, 3], [1, 1, 1, 0, 0]).result())


def test_scores_beyond_the_bins_count_at_their_ends():
    assert _auc([1e9, -1e9], [1, 0]).result() == 1.0


def test_what_an_update_runs_is_compiled_when_the_metric_is_made(monkeypatch):
    count = numba.njit(auc._count.py_func)
    monkeypatch.setattr(auc, "_count", count)
    made = AUC()
    assert len(count.signatures) == 1
    made.update(*np.zeros((3, 4), np.float32))
    assert len(count.signatures) == 1


def _table(logits, labels, weights=None):
    reliability = Reliability()
    logits = np.float32(logits)
    reliability.update(logits, np.float32(labels), np.ones_like(logits) if weights is None else np.float32(weights))
    return reliability.table()


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
