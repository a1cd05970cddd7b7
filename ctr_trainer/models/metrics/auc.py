"""Areas under the ROC and the precision-recall curve, and calibration, from the sums of the examples at each score."""

import numpy as np

DECILES = 10


def roc_auc(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Computes the probability that a positive example scores above a negative one. A tie counts as one half.

        AUC = sum_s p_s * (n_<s + n_s / 2) / (P * N)

    `negatives` and `positives` are float64[S], the sum of the examples' weights at each of S scores, in ascending order
    of the scores. The result is NaN if there are no positive or no negative examples.
    """
    below = np.cumsum(negatives) - negatives
    pairs = positives.sum() * negatives.sum()
    return float(np.sum(positives * (below + negatives / 2)) / pairs) if pairs else float("nan")


def average_precision(negatives: np.ndarray, positives: np.ndarray) -> float:
    """Computes the area under the precision-recall curve as steps, as scikit-learn's `average_precision_score` does.

        AP = sum_s (p_s / P) * p_>=s / (p_>=s + n_>=s)

    For `negatives` and `positives`, see `roc_auc`. The result is NaN without positive examples, 1 with only these.
    """
    total = positives.sum()
    if not total:
        return float("nan")
    at_least = np.cumsum(positives[::-1])[::-1]
    all_at_least = at_least + np.cumsum(negatives[::-1])[::-1]
    precision = np.divide(at_least, all_at_least, out=np.zeros_like(at_least), where=all_at_least > 0)
    return float(np.sum(positives * precision) / total)


def deciles(sums: np.ndarray) -> list[dict[str, float]]:
    """Compares the predictions and the labels of each decile of the examples, sorted by prediction.

    Examples with equal scores are never separated: all of them belong to the decile of their middle. Therefore there
    are fewer than ten deciles if many predictions are tied. `sums` are float64[S, 4], see `ScoreSums.sums`.

    Returns dicts, by ascending prediction: `decile` (1 to 10), `weight` (sum of the examples' weights), `prob_mean`,
    `real_mean` and `copc`; none if a score is NaN.
    """
    weights = sums[:, 1] + sums[:, 2]
    total = weights.sum()
    if not total > 0:
        return []
    middle = np.cumsum(weights) - weights / 2
    decile = np.minimum((DECILES * middle / total).astype(np.int64), DECILES - 1)
    columns = weights, weights * sigmoid(sums[:, 0]), sums[:, 3]
    table = np.stack([np.bincount(decile, column, minlength=DECILES) for column in columns], axis=1)
    rows = []
    for number, (weight, predictions, labels) in enumerate(table.tolist(), 1):
        if weight:
            means = dict(prob_mean=predictions / weight, real_mean=labels / weight)
            rows.append(dict(decile=number, weight=weight, **means, copc=copc(labels, predictions)))
    return rows


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Computes `1 / (1 + exp(-logits))` in float64: it cannot overflow, and small probabilities keep their digits."""
    return 0.5 + 0.5 * np.tanh(0.5 * np.asarray(logits, np.float64))


def copc(labels: float, predictions: float) -> float:
    """Computes clicks divided by predicted clicks, which is 1 if the predictions are calibrated.

    Both are sums, or both are means, over the same examples; the result is NaN if the predictions are 0.
    """
    return float(labels / predictions) if predictions else float("nan")
