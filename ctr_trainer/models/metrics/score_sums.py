"""The sums of the examples at each score, in constant memory: what AUC, average precision and deciles are made of."""

from collections.abc import Callable

import numba
import numpy as np

SCORES = 1 << 17


class ScoreSums:
    """Weights and labels of examples, summed by score. NaN among the scores makes all sums NaN.

    As long as there are at most `limit` distinct scores, each one has its own sums, and the figures are exact. Beyond
    that, neighbouring scores are grouped at their mean, and the examples of a group count as ties. A group's shares of
    the negative weight N and of the positive weight P add up to at most `5.3 / limit`, so the AUC changes by at most

        sum_g n_g p_g / (2 N P) <= 5.3 / (4 limit), which is 1e-5 for `SCORES`

    Later examples whose scores are within the range of a group count as above or below all its examples. On random
    data this changes the AUC by about 1e-7.

    Args:
      limit: number of scores and groups that are kept.

    Attributes:
      sums: float64[S, 4] with S <= `limit`, until more examples are added. The columns are, by ascending score: the
        score (of a group the mean), the weights of the negative examples, the weights of the positive examples, and
        weight * label.
    """

    def __init__(self, limit: int = SCORES) -> None:
        self._limit = limit
        self.sums = np.zeros((0, 4))
        none = np.zeros(0, np.float32)  # Compiles what an update runs now, because training steps are timed.
        self.update(none, none, none)
        _group(self.sums, 1.0, 0.0)

    def update(self, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
        """Adds examples, float32[B]; a label above 0.5 is positive, and examples of weight 0 do not count."""
        order = np.flatnonzero(weights)
        order = order[np.argsort(logits[order])]
        weight, is_click = weights[order].astype(np.float64), labels[order] > 0.5
        self.add(np.stack([logits[order], weight * ~is_click, weight * is_click, weight * labels[order]], 1))

    def add(self, sums: np.ndarray) -> None:
        """Adds the `sums` of other examples."""
        if np.isnan(sums).any() or np.isnan(self.sums).any():
            self.sums = np.full((1, 4), np.nan)
        else:
            merged = np.empty((len(self.sums) + len(sums), 4))
            count = _merge(self.sums, sums, merged)
            self.sums = merged[: _limited(merged[:count], self._limit)]

    def merge(self, all_gather: Callable[[np.ndarray, str], np.ndarray], name: str) -> None:
        """Adds the sums of all workers. A collective.

        A worker sends at most `4 * limit / workers` scores, but not fewer than 4,096, so that the memory does not grow
        with the number of workers.
        """
        workers = len(all_gather(np.ones(1), f"{name}.workers"))
        own = group(self.sums, min(self._limit, max(4 * self._limit // workers, 4096)))
        of_all = all_gather(own.reshape(-1), f"{name}.sums").reshape(-1, 4)
        self.sums = np.zeros((0, 4))
        self.add(of_all[np.argsort(of_all[:, 0])])


def group(sums: np.ndarray, limit: int) -> np.ndarray:
    """Returns `sums` with at most `limit` scores: neighbours are grouped if there are more, see `ScoreSums`."""
    if len(sums) <= limit:
        return sums
    groups = sums.copy()
    return groups[: _limited(groups, limit)]


def _limited(sums: np.ndarray, limit: int) -> int:
    """Groups the rows of `sums` in place. Returns the number of groups, which take the place of the first rows."""
    count = len(sums)
    for most_above in (128 / limit, 0.0):  # The second is needed only if weights differ by many powers of ten.
        if count > limit:
            count = _group(sums[:count], 2.6 / limit, most_above)
    return count


@numba.njit(nogil=True, cache=True)
def _group(sums: np.ndarray, interval_length: float, most_above: float) -> int:
    """Groups neighbouring rows by intervals of the cumulative sum of their shares. Returns the number of groups."""
    # A row belongs to the interval of its middle. Otherwise, the class of a row would decide at which end of a group it
    # is, which changes the AUC. If `most_above` is not 0, a group's weight stays below `most_above` times the weight of
    # all higher scores, because precision among the highest scores depends on few examples.
    negative, positive, count, cumulative, last = 0.0, 0.0, 0, 0.0, -1
    for i in range(len(sums)):
        negative += sums[i, 1]
        positive += sums[i, 2]
    above = negative + positive
    for i in range(len(sums)):
        weight = sums[i, 1] + sums[i, 2]
        above -= weight
        own = (sums[i, 1] / negative if negative > 0 else 0.0) + (sums[i, 2] / positive if positive > 0 else 0.0)
        interval = int((cumulative + own / 2) / interval_length)
        joins = interval == last and np.isfinite(sums[i, 0] - sums[count - 1, 0])
        if most_above and joins:
            joins = sums[count - 1, 1] + sums[count - 1, 2] + weight <= most_above * above
        cumulative, last = cumulative + own, interval
        count = _put(sums, count, joins, sums, i)
    return count


@numba.njit(nogil=True, cache=True)
def _merge(a: np.ndarray, b: np.ndarray, merged: np.ndarray) -> int:
    """Merges rows that are sorted by score, and adds up the rows of equal scores. Returns the number of merged rows."""
    count, i, j = 0, 0, 0
    while i < len(a) or j < len(b):
        if j == len(b) or (i < len(a) and a[i, 0] <= b[j, 0]):
            count = _put(merged, count, count > 0 and merged[count - 1, 0] == a[i, 0], a, i)
            i += 1
        else:
            count = _put(merged, count, count > 0 and merged[count - 1, 0] == b[j, 0], b, j)
            j += 1
    return count


@numba.njit(nogil=True, cache=True, inline="always")
def _put(groups: np.ndarray, count: int, joins: bool, rows: np.ndarray, at: int) -> int:
    """Adds a row to the last group if it joins that group, else appends it. Returns the number of groups."""
    if not joins:
        for k in range(4):
            groups[count, k] = rows[at, k]
        return count + 1
    last, weight = count - 1, rows[at, 1] + rows[at, 2]
    if rows[at, 0] != groups[last, 0]:
        groups[last, 0] += (rows[at, 0] - groups[last, 0]) * weight / (weight + groups[last, 1] + groups[last, 2])
    for k in range(1, 4):
        groups[last, k] += rows[at, k]
    return count
