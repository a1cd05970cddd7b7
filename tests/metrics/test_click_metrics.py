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


def test_a_large_logit_does_not_overflow():
    metrics = ClickMetrics()
    with np.errstate(over="raise"):
        metrics.update(np.float32([100, -100]), np.float32([0, 1]), np.ones(2, np.float32))
    assert metrics.results()["xentropy_mean"] == pytest.approx(100)


def test_a_small_probability_keeps_its_digits():
    metrics = ClickMetrics()
    metrics.update(np.float32([-12]), np.float32([0]), np.ones(1, np.float32))
    assert metrics.results()["prob_mean"] == pytest.approx(1 / (1 + math.exp(12)), rel=1e-9)
