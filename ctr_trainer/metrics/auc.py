"""Areas under the ROC and the precision-recall curve, and calibration, from sums that add up over workers."""

import math

import numba
import numpy as np

DECILES = 10
BINS = 1 << 17
COARSE_BINS = 1 << 13
LIMIT = 16.0


def roc_auc(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Computes the probability that a positive example scores above a negative one. A tie counts as one half.

        AUC = sum_s p_s * (n_<s + n_s / 2) / (P * N)

    Args:
      negatives, positives: float64[S], the sum of the examples' weights at each of S scores, in ascending order of the
        scores. Examples with equal scores count as ties.

    Returns:
      float; NaN if there are no positive or no negative examples.
    """
    below = np.cumsum(negatives) - negatives
    pairs = positives.sum() * negatives.sum()
    return float(np.sum(positives * (below + negatives / 2)) / pairs) if pairs else float("nan")


def average_precision(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Computes the area under the precision-recall curve as steps, as scikit-learn's `average_precision_score` does.

        AP = sum_s (p_s / P) * p_>=s / (p_>=s + n_>=s)

    Args:
      negatives, positives: see `roc_auc`.

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


def exact_curves(logits: np.ndarray, signed_weights: np.ndarray) -> tuple[float, float]:
    """Computes AUC and average precision from all logits. Only equal logits count as ties.

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


class AUC:
    """The AUC (see `roc_auc`), computed from examples that are counted in bins of the logit.

    There are 131,072 equal bins between -16 and 16, so a bin is 0.00024 wide. Examples in the same bin count as ties.
    On real predictions, the AUC is within 1e-5, and the average precision within 1e-4, of the exact figures that
    `exact_curves` computes.

    Attributes:
      state: float64[2, bins], the sums of the weights of negative and of positive examples in each bin. The states of
        two workers add up.
    """

    def __init__(self) -> None:
        self.state = np.zeros((2, BINS))
        none = np.zeros(0, np.float32)
        self.update(none, none, none)  # Compiles the update now, because training steps are timed.

    def update(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        """Adds examples.

        Args:
          logits: float32[B]; NaN among them makes the result NaN.
          labels: float32[B]; a label above 0.5 is positive.
          weights: float32[B].
        """
        _count(logits, labels, weights, self.state)

    def coarse(self) -> np.ndarray:
        """Returns the state in bins 16 times as wide, for a line of the log: float64[2, COARSE_BINS], 128 KB."""
        return self.state.reshape(2, COARSE_BINS, -1).sum(-1)

    def reset(self) -> None:
        self.state[:] = 0

    def result(self) -> float:
        """Computes the AUC; NaN if there are no positive or no negative examples."""
        return roc_auc(*self.state)

    def average_precision(self) -> float:
        """Computes the area under the precision-recall curve; see `average_precision`."""
        return average_precision(*self.state)


@numba.njit(nogil=True, cache=True)
def bin_of(logit: float) -> int:
    """Returns the index, from 0, of the bin of a logit that is not NaN."""
    scaled = (logit + LIMIT) * (BINS / (2 * LIMIT))
    return int(min(max(scaled, 0.0), BINS - 1.0))


@numba.njit(nogil=True, cache=True)
def _count(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, state: np.ndarray) -> None:
    for i in range(logits.shape[0]):
        if weights[i] == 0.0:
            continue
        if math.isnan(logits[i]):
            state[:] = math.nan
            return
        state[1 if labels[i] > 0.5 else 0, bin_of(logits[i])] += weights[i]


class Reliability:
    """The mean prediction and the mean label of each decile of the examples, sorted by prediction.

    A bin of the logit (0.00024 wide, see `AUC`) is never split: all its examples belong to the decile of the bin's
    middle. Therefore the deciles are equal to within a bin, and there are fewer than ten if many predictions are tied.

    Attributes:
      state: float64[3, bins], the sums of weights, weighted predictions and weighted labels in each bin. The states of
        two workers add up.
    """

    def __init__(self) -> None:
        self.state = np.zeros((3, BINS))

    def update(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        """Adds examples.

        Args:
          logits: float32[B]; after a NaN the table has no rows.
          labels, weights: float32[B].
        """
        _add(logits, labels, weights, self.state)

    def table(self) -> list[dict[str, float]]:
        """Computes the figures of each decile.

        Returns:
          list of dicts, by ascending prediction: `decile` (1 to 10), `weight` (sum of the examples' weights),
            `prob_mean`, `real_mean` and `copc`.
        """
        weights = self.state[0]
        total = weights.sum()
        if not total > 0:
            return []
        middle = np.cumsum(weights) - weights / 2
        decile = np.minimum((DECILES * middle / total).astype(np.int64), DECILES - 1)
        sums = np.stack([np.bincount(decile, column, minlength=DECILES) for column in self.state])
        rows = []
        for number, (weight, predictions, labels) in enumerate(sums.T, 1):
            if weight:
                means = dict(prob_mean=float(predictions / weight), real_mean=float(labels / weight))
                rows.append(dict(decile=number, weight=float(weight), **means, copc=copc(labels, predictions)))
        return rows


def copc(labels: float, predictions: float) -> float:
    """Computes clicks divided by predicted clicks, which is 1 if the predictions are calibrated.

    Args:
      labels: sum or mean of the labels.
      predictions: sum or mean of the predictions of the same examples.

    Returns:
      `labels / predictions`; NaN if `predictions` is 0.
    """
    return float(labels / predictions) if predictions else float("nan")


@numba.njit(nogil=True, cache=True)
def _add(logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, state: np.ndarray) -> None:
    for i in range(logits.shape[0]):
        if weights[i] == 0.0:
            continue
        if math.isnan(logits[i]):
            state[:] = math.nan
            return
        at = bin_of(logits[i])
        state[0, at] += weights[i]
        state[1, at] += weights[i] / (1.0 + math.exp(-logits[i]))
        state[2, at] += weights[i] * labels[i]
