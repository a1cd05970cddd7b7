"""AUC and average precision without bins."""

import numpy as np

from ctr_trainer.metrics.curves import average_precision, roc_auc


def exact_curves(logits, signed_weights):
    """Computes AUC and average precision (see `curves`) from all logits. Only equal logits count as ties.

    Args:
      logits: float32[n]; NaN among them makes both results NaN.
      signed_weights: float32[n], the weights of the examples, with a minus sign for negative examples.

    Returns:
      (AUC, average precision), floats.
    """
    if np.isnan(logits).any():
        return float("nan"), float("nan")
    order = np.argsort(logits)
    logits, signed_weights = logits[order], signed_weights[order].astype(np.float64)
    starts = np.flatnonzero(np.append(True, logits[1:] != logits[:-1])) if len(logits) else np.empty(0, np.int64)
    if not len(starts):
        return float("nan"), float("nan")
    negatives = np.add.reduceat(np.maximum(-signed_weights, 0), starts)
    positives = np.add.reduceat(np.maximum(signed_weights, 0), starts)
    return roc_auc(negatives, positives), average_precision(negatives, positives)
