import numpy as np
import pytest

from ctr_trainer.metrics.grouped_auc import grouped_auc


def _grouped(logits, labels, groups, weights=None):
    weights = np.ones(len(logits), np.float32) if weights is None else np.float32(weights)
    return grouped_auc(np.float32(logits), np.where(np.array(labels) > 0, weights, -weights), np.int64(groups))


def test_weights_groups_by_their_examples_and_leaves_out_those_of_one_class():
    # group 7: (2 > 1) -> 1.0 of 2 examples; group 8: (0 < 1), (0 < 3) -> 0.0 of 3; group 9: positives only
    result = _grouped([2, 1, 0, 1, 3, 5], [1, 0, 1, 0, 0, 1], [7, 7, 8, 8, 8, 9])
    assert result.value == pytest.approx(2 / 5)
    assert (result.groups, result.left_out) == (2, 1)


def test_scores_of_different_groups_are_not_compared():
    # Within each group the positive is above, though group 1's negative is above group 2's positive.
    assert _grouped([9, 8, 2, 1], [1, 0, 1, 0], [1, 1, 2, 2]).value == 1.0


def test_a_weight_of_two_counts_as_two_examples():
    twice = _grouped([1, 2, 0, 0, 1], [1, 1, 0, 1, 0], [1, 1, 1, 2, 2], [2, 1, 1, 1, 1])
    assert twice == _grouped([1, 1, 2, 0, 0, 1], [1, 1, 1, 0, 1, 0], [1, 1, 1, 1, 2, 2])


def test_one_group_is_the_auc_and_ties_count_a_half():
    assert _grouped([1, 1, 0], [1, 0, 0], [4, 4, 4]).value == pytest.approx(0.75)


def test_no_example_or_no_group_with_both_classes_is_nan():
    assert np.isnan(_grouped([], [], []).value)
    result = _grouped([1, 2], [1, 0], [1, 2])
    assert np.isnan(result.value)
    assert (result.groups, result.left_out) == (0, 2)
