"""The areas under the ROC and the precision-recall curve, from the weights at each score."""

import numpy as np


def roc_auc(negatives, positives):
    """The probability that a positive example scores above a negative one, ties counting a half.

        AUC = sum_s p_s * (n_<s + n_s / 2) / (P * N)

    Args:
      negatives, positives: float64[S], the weight of the examples at each score, in ascending order of the scores;
        examples of one place count as ties.

    Returns:
      float; NaN where there are no positives or no negatives.
    """
    below = np.cumsum(negatives) - negatives
    pairs = positives.sum() * negatives.sum()
    return float(np.sum(positives * (below + negatives / 2)) / pairs) if pairs else float("nan")


def average_precision(negatives, positives):
    """The area under the precision-recall curve as steps, as scikit-learn's `average_precision_score`.

        AP = sum_s (p_s / P) * p_>=s / (p_>=s + n_>=s)

    Args and Returns: as `roc_auc`, but 1 where there are no negatives.
    """
    total = positives.sum()
    if not total:
        return float("nan")
    at_least = np.cumsum(positives[::-1])[::-1]
    all_at_least = at_least + np.cumsum(negatives[::-1])[::-1]
    precision = np.divide(at_least, all_at_least, out=np.zeros_like(at_least), where=all_at_least > 0)
    return float(np.sum(positives * precision) / total)
