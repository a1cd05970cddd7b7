import math

import numpy as np
import pytest

from ctr_trainer.metrics.click_metrics import ClickMetrics


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
