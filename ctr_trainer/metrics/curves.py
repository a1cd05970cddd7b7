"""The areas under the ROC curve and the precision-recall curve, from the sums of weights at each score."""

import numpy as np


def roc_auc(negatives, positives):
    """Computes the probability that a positive example scores above a negative one; a tie counts a half.

        AUC = sum_s p_s * (n_<s + n_s / 2) / (P * N)

    Args:
      negatives, positives: float64[S], the sum of the examples' weights at each of S scores, in ascending order of the
        scores. The examples of one score count as ties.

    Returns:
      float; NaN if there are no positive or no negative examples.
    """
    below = np.cumsum(negatives) - negatives
    pairs = positives.sum() * negatives.sum()
    return float(np.sum(positives * (below + negatives / 2)) / pairs) if pairs else float("nan")


def average_precision(negatives, positives):
    """Computes the area under the precision-recall curve as steps, as scikit-learn's `average_precision_score` does.

        AP = sum_s (p_s / P) * p_>=s / (p_>=s + n_>=s)

    Args:
      negatives, positives: as for `roc_auc`.

    Returns:
      float; NaN if there are no positive examples, 1 if there are only positive ones.
    """
    total = positives.sum()
    if not total:
        return float("nan")
    at_least = np.cumsum(positives[::-1])[::-1]
    all_at_least = at_least + np.cumsum(negatives[::-1])[::-1]
    precision = np.divide(at_least, all_at_least, out=np.zeros_like(at_least), where=all_at_least > 0)
    return float(np.sum(positives * precision) / total)
