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


def test_merging_adds_the_other_workers_state():
    logits, labels, weights = np.float32([1, -1, 2]), np.float32([1, 0, 0]), np.ones(3, np.float32)
    mine, whole = ClickMetrics(), ClickMetrics()
    mine.update(logits[:1], labels[:1], weights[:1])
    other = ClickMetrics()
    other.update(logits[1:], labels[1:], weights[1:])
    whole.update(logits, labels, weights)
    mine.merge(lambda state, name: state + other.parts[name.removeprefix("metric.")].state)
    assert mine.results() == pytest.approx(whole.results())


def test_a_large_logit_does_not_overflow():
    metrics = ClickMetrics()
    with np.errstate(over="raise"):
        metrics.update(np.float32([100, -100]), np.float32([0, 1]), np.ones(2, np.float32))
    assert metrics.results()["xentropy_mean"] == pytest.approx(100)
