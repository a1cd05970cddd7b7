"""The AUC within groups, such as the impressions of one user."""

import dataclasses
import math
from collections.abc import Callable

import numba
import numpy as np


class ScoredExamples:
    """Scores and labels of all examples, in the order in which the workers saw them.

    Caveat: memory grows with the data: 8 bytes per example, 16 with groups. After `gather` each worker holds the
    examples of all workers, and three copies of them while they are sorted: for 100 million examples 2.4 GB, with
    groups 4.8 GB.

    Args:
      grouped: whether examples have a group.
    """

    def __init__(self, grouped: bool = False) -> None:
        self._grouped = grouped
        self._parts: list[list[np.ndarray]] = []

    def update(
        self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray, groups: np.ndarray | None = None
    ) -> None:
        """Adds examples.

        Args:
          logits, labels: float32[B].
          weights: float32[B]; examples of weight 0 are left out.
          groups: int64[B], the group of each example; None without groups.
        """
        counts = weights != 0
        # The sign of the weight says the class, so that an example is two numbers and not three.
        signed = np.where(labels > 0.5, weights, -weights)
        part = [logits[counts].astype(np.float32), signed[counts].astype(np.float32)]
        if self._grouped:
            assert groups is not None
            part.append(groups[counts])
        self._parts.append(part)

    def gather(self, all_gather: Callable[[np.ndarray, str], np.ndarray], name: str) -> None:
        """Gives the examples of all workers to each worker. A collective.

        Args:
          all_gather: f(array, name) -> array, the workers' arrays one after the other.
          name: name of the collective.
        """
        columns = self.columns()
        names = ("logits", "weights", "groups")
        self._parts = [[all_gather(c, f"{name}.{n}") for c, n in zip(columns, names, strict=False)]]

    def columns(self) -> list[np.ndarray]:
        """Lists the arrays of the examples.

        Returns:
          list of logits float32[n], weights float32[n], with a minus sign for negative examples, and, if there are
          groups, groups int64[n].
        """
        empty = [np.empty(0, np.float32), np.empty(0, np.float32), np.empty(0, np.int64)][: 2 + self._grouped]
        return [np.concatenate(column) for column in zip(empty, *self._parts, strict=True)]


@dataclasses.dataclass(frozen=True)
class GroupedAUC:
    """The mean of the groups' AUCs, weighted by the groups' sums of example weights.

      GAUC = sum_g w_g AUC_g / sum_g w_g, over the groups g with both classes; w_g is the sum of the weights in g

    Source: Zhou et al., Deep Interest Network for Click-Through Rate Prediction, KDD 2018, section 6.3.

    Attributes:
      value: float, the GAUC; NaN if no group has both classes.
      groups: number of groups with both classes.
      left_out: number of groups with one class only, which have no AUC.
    """

    value: float
    groups: int
    left_out: int


def grouped_auc(logits: np.ndarray, signed_weights: np.ndarray, groups: np.ndarray) -> GroupedAUC:
    """Computes the AUC within groups.

    Args:
      logits: float32[n]; NaN among them makes the value NaN.
      signed_weights: float32[n], the weights of the examples, not 0, with a minus sign for negative examples.
      groups: int64[n], the group of each example, in any order.

    Returns:
      `GroupedAUC`.
    """
    order = np.lexsort((logits, groups))
    total, weight, both, one = _sum_groups(logits[order], signed_weights[order], groups[order])
    value = total / weight if weight and not np.isnan(logits).any() else float("nan")
    return GroupedAUC(value, both, one)


@numba.njit(nogil=True, cache=True)
def _sum_groups(logits: np.ndarray, weights: np.ndarray, groups: np.ndarray) -> tuple[float, float, int, int]:
    """Returns the sums of w_g AUC_g and of w_g, and the numbers of groups with both classes and with one.

    The examples are sorted by group, then by logit.
    """
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
