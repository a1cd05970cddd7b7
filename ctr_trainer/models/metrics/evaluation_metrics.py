"""All metrics of an evaluation, per label and within groups; the same on any number of workers."""

import math
from collections.abc import Callable, Iterable

import numba
import numpy as np

from ctr_trainer.models.metrics.auc import average_precision, copc, deciles, sigmoid
from ctr_trainer.models.metrics.click_metrics import ClickMetrics, Mean, metric_name

Merge = Callable[[np.ndarray, str], np.ndarray]  # f(array, name) -> array; a collective.
# Whether a greater or a smaller value is better. A metric that is not listed, such as `prob_mean`, has no direction.
DIRECTIONS = {
    **dict.fromkeys(("auc", "accuracy", "auc_pr", "gauc"), "max"),
    **dict.fromkeys(("logloss", "loss", "normalized_entropy", "brier"), "min"),
}


class GroupedExamples:
    """Scores, labels and groups of all examples, in the order in which the workers saw them.

    Caveat: memory grows with the data: 16 bytes per example. After `gather`, each worker holds the examples of all
    workers, and three copies of them while they are sorted: 4.8 GB for 100 million examples.
    """

    def __init__(self) -> None:
        self._parts: list[list[np.ndarray]] = []

    def update(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, groups: np.ndarray) -> None:
        """Adds examples: float32[B], and int64[B], the group of each. Leaves out weight 0 and group 0, that of none."""
        counts = (weights != 0) & (groups != 0)
        # The sign of the weight encodes the class, so that an example takes two numbers instead of three.
        signed = np.where(labels > 0.5, weights, -weights)
        self._parts.append([logits[counts].astype(np.float32), signed[counts].astype(np.float32), groups[counts]])

    def gather(self, all_gather: Callable[[np.ndarray, str], np.ndarray], name: str) -> None:
        """Collects the examples of all workers on each worker. A collective of this name."""
        names = ("logits", "weights", "groups")
        self._parts = [[all_gather(c, f"{name}.{n}") for c, n in zip(self.columns(), names, strict=True)]]

    def columns(self) -> list[np.ndarray]:
        """Returns the arguments of `grouped_auc`."""
        empty = [np.empty(0, np.float32), np.empty(0, np.float32), np.empty(0, np.int64)]
        return [np.concatenate(column) for column in zip(empty, *self._parts, strict=True)]


def grouped_auc(logits: np.ndarray, signed_weights: np.ndarray, groups: np.ndarray) -> tuple[float, int, int]:
    """Computes the mean of the groups' AUCs, weighted by the groups' sums of example weights.

        GAUC = sum_g w_g AUC_g / sum_g w_g, over the groups g with both classes; w_g is the sum of the weights in g

    The logits are float32[n], the signed weights float32[n], not 0 and with a minus sign for negative examples, and the
    groups int64[n], in any order. Returns (GAUC, NaN if a logit is or no group has both classes; the number of groups
    with both classes; the number of groups with one class only, which have no AUC).

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 6.3.
    """
    order = np.lexsort((logits, groups))
    total, weight, both, one = _sum_groups(logits[order], signed_weights[order], groups[order])
    value = total / weight if weight and not np.isnan(logits).any() else float("nan")
    return value, both, one


@numba.njit(nogil=True, cache=True)
def _sum_groups(logits: np.ndarray, weights: np.ndarray, groups: np.ndarray) -> tuple[float, float, int, int]:
    """Returns the sums of w_g AUC_g and of w_g, and the numbers of groups with both classes and with one class."""
    total, total_weight, both, one = 0.0, 0.0, 0, 0
    count, i = len(logits), 0
    while i < count:
        group, positive, negative, area = groups[i], 0.0, 0.0, 0.0
        while i < count and groups[i] == group:
            logit, positive_here, negative_here = logits[i], 0.0, 0.0
            # The first logit is taken without a comparison, because NaN does not even equal itself.
            while True:
                if weights[i] > 0:
                    positive_here += weights[i]
                else:
                    negative_here -= weights[i]
                i += 1
                if i == count or groups[i] != group or logits[i] != logit or math.isnan(logit):
                    break
            area += positive_here * (negative + negative_here / 2)
            positive += positive_here
            negative += negative_here
        if positive > 0 and negative > 0:
            weight = positive + negative
            total += weight * area / (positive * negative)
            total_weight += weight
            both += 1
        else:
            one += 1
    return total, total_weight, both, one


def normalized_entropy(logloss: float, real_mean: float) -> float:
    """Normalizes the cross entropy. A value below 1 is better than predicting the mean label for every example.

      NE = logloss / -(p log p + (1 - p) log(1 - p)), p the mean label; NaN if all labels are of one class

    Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014, section 3.
    """
    if not 0 < real_mean < 1:
        return math.nan
    return logloss / -(real_mean * math.log(real_mean) + (1 - real_mean) * math.log1p(-real_mean))


class EvaluationMetrics:
    """The metrics of each label. If labels have names, a metric has a name such as `auc/click`.

    The metrics are `auc`, `auc_pr`, `accuracy` (a probability above 0.5 counts as positive), `logloss`,
    `normalized_entropy`, `brier`, `copc`, `prob_mean` and `real_mean`. With groups there are also `gauc`, `gauc_groups`
    (number of groups with both classes) and `gauc_groups_left_out` (number of groups with one class).

    Args:
      labels: names of the labels; [""] for a model with one label.
      grouped: whether examples have groups, see `GroupedExamples`.
    """

    def __init__(self, labels: Iterable[str], grouped: bool = False) -> None:
        self._clicks = {label: ClickMetrics() for label in labels}
        self._briers = {label: Mean() for label in self._clicks}
        self._examples = {label: GroupedExamples() for label in self._clicks} if grouped else {}

    def update(
        self, label: str, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, groups: np.ndarray | None = None
    ) -> None:
        """Adds examples of a label, see `GroupedExamples.update`; examples of weight 0 do not count."""
        self._clicks[label].update(logits, labels, weights)
        self._briers[label].update((sigmoid(logits) - labels) ** 2, weights)
        if self._examples and groups is not None:
            self._examples[label].update(logits, labels, weights, groups)

    def merge(self, all_sum: Merge, all_gather: Merge) -> None:
        """Merges the metrics over all workers, so that each worker has the same results. A collective.

        `all_sum(array, name)` returns the sum over workers, `all_gather(array, name)` their concatenated arrays.
        """
        for label, click in self._clicks.items():
            name, means = metric_name("metrics", label), [*click.means.values(), self._briers[label]]
            for mean, state in zip(means, all_sum(np.stack([mean.state for mean in means]), name), strict=True):
                mean.state[:] = state
            click.scores.merge(all_gather, name)
            if self._examples:
                self._examples[label].gather(all_gather, name)

    def results(self) -> dict[str, float]:
        """Computes the metrics by name: a float, or an int for a count; NaN if a metric is not defined."""
        found: dict[str, float] = {}
        for label, click in self._clicks.items():
            means = click.results()
            own = {
                "auc": means["auc"],
                "auc_pr": average_precision(*click.scores.sums.T[1:3]),
                "accuracy": means["accuracy"],
                "logloss": means["xentropy_mean"],
                "normalized_entropy": normalized_entropy(means["xentropy_mean"], means["real_mean"]),
                "brier": self._briers[label].result(),
                "copc": copc(means["real_mean"], means["prob_mean"]),
                "prob_mean": means["prob_mean"],
                "real_mean": means["real_mean"],
            }
            if self._examples:
                gauc = grouped_auc(*self._examples[label].columns())
                own |= zip(("gauc", "gauc_groups", "gauc_groups_left_out"), gauc, strict=True)
            found |= {metric_name(name, label): value for name, value in own.items()}
        return found

    def reliability(self) -> dict[str, list[dict[str, float]]]:
        """Returns a dict of label name -> the rows of `deciles`."""
        return {label: deciles(click.scores.sums) for label, click in self._clicks.items()}
