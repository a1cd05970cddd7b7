"""Statistics of a data set, computed while the data set is written."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ctr_trainer.data.blocks import label_columns
from ctr_trainer.features.columns import BOUNDARIES
from ctr_trainer.features.spec import FeatureSpec

_SAMPLE = 1 << 20
_SIZE = 1 << 14


class Quantiles:
    """The boundaries of a column's quantiles: exact up to a million values, then computed from a sample.

    Each boundary is a value of the column, but never the smallest one, so no bucket is empty. Equal boundaries are
    merged, so there may be fewer than `count` buckets. At most `sample` values are kept, 4 bytes each.

    Source: Vitter, Random Sampling with a Reservoir, 1985, algorithm R. LightGBM also bins by a sample of 200,000 rows.
    """

    def __init__(self, count: int, sample: int = _SAMPLE) -> None:
        self._count = count
        self._kept = np.empty(0, np.float32)
        self._sample, self._seen = sample, 0
        self._rng = np.random.default_rng(0)

    def add(self, values: np.ndarray) -> None:
        """Adds a float32 array; NaN is a missing value."""
        values = values[~np.isnan(values)]
        room = max(self._sample - self._seen, 0)
        self._kept = np.concatenate([self._kept, values[:room]])
        self._seen += min(room, len(values))
        values = values[room:]
        # The i-th value, from 1, is kept with the probability sample / i.
        place = self._rng.integers(0, self._seen + 1 + np.arange(len(values)))
        stays = place < self._sample
        self._kept[place[stays]] = values[stays]  # The last value for a place is kept, as if added one by one.
        self._seen += len(values)

    def merge(self, other: "Quantiles") -> None:
        """Adds the values of another Quantiles.

        If `other` has kept all its values, they are added one by one. Otherwise each value has the same probability of
        being in the merged sample.
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

    def boundaries(self) -> np.ndarray:
        """Returns float32[at most count - 1], ascending; empty if there are fewer than two distinct values."""
        if not len(self._kept):
            return self._kept
        # The (k / count)-quantile is the sorted value with index ceil(k / count * n).
        ranks = np.minimum(-(-np.arange(1, self._count) * len(self._kept) // self._count), len(self._kept) - 1)
        ordered = np.sort(self._kept)
        boundaries = np.unique(ordered[ranks])
        return boundaries[boundaries > ordered[0]]


class Distinct:
    """The number of distinct int64 keys: exact below `size`, an estimate beyond that. The key 0 does not count.

    The `size` smallest keys are kept, 8 bytes each. Keys are uniformly distributed hashes. If x is the largest kept key
    divided by 2^64, the estimate is (size - 1) / x, with a standard error of 1 / sqrt(size - 2), 0.8 %.

    Source: Bar-Yossef et al., Counting Distinct Elements in a Data Stream, 2002; Beyer et al., On Synopses for
    Distinct-Value Estimation, 2007.
    """

    def __init__(self, size: int = _SIZE) -> None:
        self._size = size
        self._parts: list[np.ndarray] = []  # The smallest keys found so far, and keys that may be among them.
        self._waiting = 0
        self._limit: np.uint64 | None = None

    def add(self, keys: pa.Array | pa.ChunkedArray) -> None:
        """Adds an int64 array."""
        self._add(pc.unique(keys).to_numpy(zero_copy_only=False).view(np.uint64))

    def merge(self, other: "Distinct") -> None:
        """Adds the keys of another Distinct of the same size."""
        for keys in other._parts:
            self._add(keys)

    @property
    def count(self) -> int:
        smallest = self._smallest()
        if len(smallest) < self._size:
            return len(smallest)
        return round((self._size - 1) / (float(smallest[-1]) / 2.0**64))

    def __getstate__(self) -> dict[str, Any]:
        self._smallest()
        return self.__dict__

    def _add(self, keys: np.ndarray) -> None:
        if self._limit is not None:
            keys = keys[keys < self._limit]
        self._parts.append(keys)
        self._waiting += len(keys)
        if self._waiting > 4 * self._size:  # Sorting rarely is much faster than keeping the keys sorted.
            self._smallest()

    def _smallest(self) -> np.ndarray:
        """Returns the smallest keys, sorted, and drops all others."""
        keys = np.unique(np.concatenate([np.empty(0, np.uint64), *self._parts]))
        keys = keys[keys != 0][: self._size]
        self._parts, self._waiting = [keys], 0
        if len(keys) == self._size:
            self._limit = keys[-1]
        return keys


class Moments:
    """The mean, population standard deviation, minimum and maximum of a column's present values, in float64."""

    def __init__(self) -> None:
        self.count, self.mean, self.squares = 0, 0.0, 0.0
        self.min, self.max = math.inf, -math.inf

    def add(self, values: np.ndarray) -> None:
        """Adds a float array; NaN is a missing value."""
        values = values[~np.isnan(values)].astype(np.float64)
        if not len(values):
            return
        mean = values.mean()
        self._merge(len(values), mean, np.square(values - mean).sum(), values.min(), values.max())

    def merge(self, other: "Moments") -> None:
        if other.count:
            self._merge(other.count, other.mean, other.squares, other.min, other.max)

    def _merge(self, count: int, mean: float, squares: float, least: float, largest: float) -> None:
        # Chan et al., "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
        total, delta = self.count + count, mean - self.mean
        self.squares += squares + delta * delta * self.count * count / total
        self.mean += delta * count / total
        self.count = total
        self.min, self.max = min(self.min, least), max(self.max, largest)

    def to_dict(self) -> dict[str, float]:
        """Returns the statistics as a dict for JSON; all are 0 if no value was present."""
        if not self.count:
            return dict(mean=0.0, std=0.0, min=0.0, max=0.0, count=0)
        std = math.sqrt(self.squares / self.count)
        return dict(mean=float(self.mean), std=std, min=float(self.min), max=float(self.max), count=self.count)


class Statistics:
    """The statistics of one data set: rows, label means, distinct keys, moments of the dense features, quantiles.

    The moments and boundaries of a dense feature are computed from its clipped values. Distinct keys of bucketised
    features are not counted, because each bucket has one key.
    """

    def __init__(self, spec: FeatureSpec) -> None:
        self.rows = 0
        self.positive = dict.fromkeys(label_columns(spec), 0.0)
        self.distinct = {f.name: Distinct() for f in spec.sparse if not f.is_bucketised}
        self.moments = {f.name: Moments() for f in spec.dense}
        self.quantiles = {f.name: Quantiles(f.quantiles) for f in spec.sparse if f.quantiles}
        self.quantiles |= {f.name: Quantiles(f.pieces) for f in spec.dense if f.pieces}
        self._names = {column: label.name for column, label in label_columns(spec).items()}
        self._clips = {f.name: f.clip for f in spec.dense if f.clip}

    def add(self, table: pa.Table) -> None:
        """Adds the rows of an encoded table (see `encode.Encoder`)."""
        self.rows += len(table)
        for column in self.positive:
            self.positive[column] += float(table[column].to_numpy().sum(dtype=np.float64))
        for name, moments in self.moments.items():
            moments.add(self._values(table, name))
        for name, quantiles in self.quantiles.items():
            quantiles.add(self._values(table, name))
        for name, distinct in self.distinct.items():
            keys = table[name]
            distinct.add(pc.list_flatten(keys) if pa.types.is_list(keys.type) else keys)

    def _values(self, table: pa.Table, name: str) -> np.ndarray:
        """Returns the clipped numbers of a feature; NaN if missing."""
        values = table[name].to_numpy()
        if name not in self._clips:
            return values
        low, high = self._clips[name]
        return np.clip(values, np.float32(low), np.float32(high))

    def merge(self, other: "Statistics") -> None:
        """Adds the Statistics of the next rows, for the same spec.

        Merging the statistics of tables in order gives the same result as adding the tables in order.
        """
        self.rows += other.rows
        for column, positive in other.positive.items():
            self.positive[column] += positive
        for name, moments in other.moments.items():
            self.moments[name].merge(moments)
        for name, quantiles in other.quantiles.items():
            self.quantiles[name].merge(quantiles)
        for name, distinct in other.distinct.items():
            self.distinct[name].merge(distinct)

    def to_dict(self) -> dict[str, Any]:
        """Returns these attributes of `DatasetInfo`: `rows`, `label_means` and `distinct`."""
        distinct = {name: distinct.count for name, distinct in self.distinct.items()}
        return dict(rows=self.rows, label_means=self.label_means(), distinct=distinct)

    def label_means(self) -> dict[str, float]:
        return {self._names[c]: total / self.rows if self.rows else 0.0 for c, total in self.positive.items()}

    def fitted(self) -> dict[str, dict[str, Any]]:
        """Returns the statistics that the transforms and buckets of features need, as in `DatasetInfo.statistics`."""
        fitted: dict[str, dict[str, Any]] = {name: moments.to_dict() for name, moments in self.moments.items()}
        for name, each in self.quantiles.items():
            fitted[name] = {**fitted.get(name, {}), BOUNDARIES: each.boundaries().tolist()}
        return fitted
