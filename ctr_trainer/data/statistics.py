"""Figures of a data set that are computed while it is written."""

import math

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.columns import label_columns
from ctr_trainer.data.distinct_count import DistinctCount
from ctr_trainer.data.quantiles import Quantiles
from ctr_trainer.features.buckets import BOUNDARIES


class Moments:
    """Mean, standard deviation (of the population), minimum and maximum of a column's present values, in float64."""

    def __init__(self):
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.min, self.max = math.inf, -math.inf

    def add(self, values):
        """Adds a float array; NaN is a missing value."""
        values = values[~np.isnan(values)].astype(np.float64)
        if not len(values):
            return
        mean = values.mean()
        self._merge(len(values), mean, np.square(values - mean).sum(), values.min(), values.max())

    def merge(self, other):
        """Adds the values of another Moments."""
        if other.count:
            self._merge(other.count, other.mean, other.squares, other.min, other.max)

    def _merge(self, count, mean, squares, least, largest):
        # Chan et al., "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
        total, delta = self.count + count, mean - self.mean
        self.squares += squares + delta * delta * self.count * count / total
        self.mean += delta * count / total
        self.count = total
        self.min, self.max = min(self.min, least), max(self.max, largest)

    def to_dict(self):
        """-> dict of figures that JSON can hold; all 0 if no value was present."""
        if not self.count:
            return dict(mean=0.0, std=0.0, min=0.0, max=0.0, count=0)
        std = math.sqrt(self.squares / self.count)
        return dict(mean=float(self.mean), std=std, min=float(self.min), max=float(self.max), count=self.count)


class Statistics:
    """The figures of one data set: rows, label means, distinct keys, moments of the dense features, quantiles.

    The moments of a dense feature are those of its clipped values. Distinct keys of bucketised features are not
    counted, since each bucket has one key.
    """

    def __init__(self, spec):
        self.rows = 0
        self.positive = dict.fromkeys(label_columns(spec), 0.0)
        self.distinct = {f.name: DistinctCount() for f in spec.sparse if not f.is_bucketised}
        self.moments = {f.name: Moments() for f in spec.dense}
        self.quantiles = {f.name: Quantiles(f.quantiles) for f in spec.sparse if f.quantiles}
        self._names = {column: label.name for column, label in label_columns(spec).items()}
        self._clips = {f.name: f.clip for f in spec.dense if f.clip}

    def add(self, table):
        """Adds the rows of an encoded table (see `encode.Encoder`)."""
        self.rows += len(table)
        for column in self.positive:
            self.positive[column] += float(table[column].to_numpy().sum(dtype=np.float64))
        for name, moments in self.moments.items():
            values = table[name].to_numpy()
            moments.add(np.clip(values, *map(np.float32, self._clips[name])) if name in self._clips else values)
        for name, quantiles in self.quantiles.items():
            quantiles.add(table[name].to_numpy())
        for name, distinct in self.distinct.items():
            keys = table[name]
            distinct.add((pc.list_flatten(keys) if pa.types.is_list(keys.type) else keys).to_numpy())

    def merge(self, other):
        """Adds the rows of other Statistics of the same spec, which follow the rows so far.

        Tables that are measured apart, and merged in their order, have the same figures as tables added in their order.
        """
        self.rows += other.rows
        for column, positive in other.positive.items():
            self.positive[column] += positive
        for own, others in (
            (self.moments, other.moments),
            (self.quantiles, other.quantiles),
            (self.distinct, other.distinct),
        ):
            for name, each in others.items():
                own[name].merge(each)

    def to_dict(self):
        """-> dict that JSON can hold; `fitted` is a dict of feature -> statistics for its transform or buckets."""
        means = {self._names[c]: total / self.rows if self.rows else 0.0 for c, total in self.positive.items()}
        fitted = {name: moments.to_dict() for name, moments in self.moments.items()}
        fitted |= {name: {BOUNDARIES: each.boundaries().tolist()} for name, each in self.quantiles.items()}
        return dict(
            rows=self.rows,
            label_mean=next(iter(means.values()), None),
            label_means=means,
            distinct={name: distinct.count for name, distinct in self.distinct.items()},
            fitted=fitted,
        )
