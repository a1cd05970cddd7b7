"""Fits boundaries that cut a column into equally full buckets."""

import numpy as np

_SAMPLE = 1 << 20


class Quantiles:
    """The boundaries of a column's quantiles: exact up to a million present values, beyond that of a uniform sample.

    Each boundary is a value that occurs, and the smallest value is no boundary, so no bucket is empty. Equal boundaries
    count once, so there may be fewer buckets than `count`.

    Args:
      count: number of buckets.
      sample: largest number of values that are kept, 4 bytes per value.

    Source: Vitter, Random Sampling with a Reservoir, 1985, algorithm R; LightGBM bins a sample of 200,000 rows alike.
    """

    def __init__(self, count, sample=_SAMPLE):
        self._count = count
        self._kept = np.empty(0, np.float32)
        self._sample, self._seen = sample, 0
        self._rng = np.random.default_rng(0)

    def add(self, values):
        """Adds a float32 array; NaN is a missing value."""
        values = values[~np.isnan(values)]
        room = max(self._sample - self._seen, 0)
        self._kept = np.concatenate([self._kept, values[:room]])
        self._seen += min(room, len(values))
        values = values[room:]
        # The i-th value, from 1, stays with the probability sample / i.
        place = self._rng.integers(0, self._seen + 1 + np.arange(len(values)))
        stays = place < self._sample
        self._kept[place[stays]] = values[stays]  # If places are equal the last value stays, as if added one by one.
        self._seen += len(values)

    def merge(self, other):
        """Adds the values of another Quantiles. If it kept all its values, the result is that of adding these values.

        If not, each value of both has the same chance to be in the sample of both.
        """
        if other._seen == len(other._kept):
            self.add(other._kept)
            return
        seen = self._seen + other._seen
        most = min(self._sample, seen)
        own = min(self._rng.hypergeometric(self._seen, other._seen, most), len(self._kept)) if self._seen else 0
        own = max(own, most - len(other._kept))
        parts = ((self._kept, own), (other._kept, most - own))
        self._kept = np.concatenate([self._rng.choice(kept, count, replace=False) for kept, count in parts])
        self._seen = seen

    def boundaries(self):
        """-> float32[at most count - 1], ascending; empty if there are fewer than two different values."""
        if not len(self._kept):
            return self._kept
        # The (k / count)-quantile is the value of rank ceil(k / count * n), from 0, in the sorted order.
        ranks = np.minimum(-(-np.arange(1, self._count) * len(self._kept) // self._count), len(self._kept) - 1)
        ordered = np.sort(self._kept)
        boundaries = np.unique(ordered[ranks])
        return boundaries[boundaries > ordered[0]]
