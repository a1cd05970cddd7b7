"""Keeps the score of every example, for metrics that cannot be computed exactly from sums of a fixed size."""

import numpy as np


class ScoredExamples:
    """Scores and labels of all examples, in the order in which the workers saw them.

    Caveat: memory grows with the data: 8 bytes per example, 16 with groups. After `gather` each worker holds the
    examples of all workers, and three copies of them while they are sorted: for 100 million examples 2.4 GB, with
    groups 4.8 GB.

    Args:
      grouped: whether examples have a group.
    """

    def __init__(self, grouped=False):
        self._grouped = grouped
        self._parts = []

    def update(self, logits, labels, weights, groups=None):
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
        self._parts.append([*part, groups[counts]] if self._grouped else part)

    def gather(self, all_gather, name):
        """Gives the examples of all workers to each worker. A collective.

        Args:
          all_gather: f(array, name) -> array, the workers' arrays one after the other.
          name: name of the collective.
        """
        columns = self.columns()
        names = ("logits", "weights", "groups")
        self._parts = [[all_gather(c, f"{name}.{n}") for c, n in zip(columns, names, strict=False)]]

    def columns(self):
        """Lists the arrays of the examples.

        Returns:
          list of logits float32[n], weights float32[n], with a minus sign for negative examples, and, if there are
          groups, groups int64[n].
        """
        empty = [np.empty(0, np.float32), np.empty(0, np.float32), np.empty(0, np.int64)][: 2 + self._grouped]
        return [np.concatenate(column) for column in zip(empty, *self._parts, strict=True)]
