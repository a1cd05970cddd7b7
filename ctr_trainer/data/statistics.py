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


class _Smallest:
    """The `size` smallest of the added uint64 numbers, without duplicates if `distinct`; at most 16 bytes each."""

    def __init__(self, size: int, distinct: bool) -> None:
        self._size, self._distinct = size, distinct
        self._parts: list[np.ndarray] = []  # The smallest numbers found so far, and numbers that may be among them.
        self._waiting = 0
        self._limit: np.uint64 | None = None

    def add(self, numbers: np.ndarray) -> None:
        if self._limit is not None:
            numbers = numbers[numbers < self._limit]
        self._parts.append(numbers)
        self._waiting += len(numbers)
        if self._waiting > self._size:  # Sorting rarely is much faster than keeping the numbers sorted.
            self.sorted()

    def merge(self, other: "_Smallest") -> None:
        for numbers in other._parts:
            self.add(numbers)

    def sorted(self) -> np.ndarray:
        """Returns the smallest numbers, sorted, and drops all others."""
        numbers = np.concatenate([np.empty(0, np.uint64), *self._parts])
        numbers = (np.unique(numbers) if self._distinct else np.sort(numbers))[: self._size]
        self._parts, self._waiting = [numbers], 0
        if len(numbers) == self._size:
            self._limit = numbers[-1]
        return numbers

    def __getstate__(self) -> dict[str, Any]:
        self.sorted()
        return self.__dict__


class Quantiles:
    """The boundaries of a column's quantiles: exact up to a million values, then computed from a sample.

    Each boundary is a value of the column, but never the smallest one, so no bucket is empty. Equal boundaries are
    merged, so there may be fewer than `count` buckets. The sample consists of the `sample` values with the smallest
    random numbers.
    """

    def __init__(self, count: int, sample: int = _SAMPLE) -> None:
        self._count, self._sample, self._seen = count, sample, 0
        self._smallest = _Smallest(sample, distinct=False)  # The high 32 bits are random, the low 32 bits are a value.
        self._random = np.random.PCG64(0)

    def add(self, values: np.ndarray) -> None:
        """Adds a float32 array; NaN is a missing value."""
        values = values[~np.isnan(values)]
        random = self._random.random_raw(len(values)) & np.uint64(0xFFFFFFFF << 32)
        self._seen += len(values)
        self._smallest.add(random | values.view(np.uint32))

    def merge(self, other: "Quantiles") -> None:
        """Adds the values of another Quantiles. Each value has the same probability of being in the merged sample."""
        if other._seen <= other._sample:
            self.add(other._values())  # With other random numbers, so that these are independent.
        else:
            self._smallest.merge(other._smallest)
            self._seen += other._seen

    def boundaries(self) -> np.ndarray:
        """Returns float32[at most count - 1], ascending; empty if there are fewer than two distinct values."""
        ordered = np.sort(self._values())
        if not len(ordered):
            return ordered
        # The (k / count)-quantile is the sorted value with index ceil(k / count * n).
        ranks = np.minimum(-(-np.arange(1, self._count) * len(ordered) // self._count), len(ordered) - 1)
        boundaries = np.unique(ordered[ranks])
        return boundaries[boundaries > ordered[0]]

    def _values(self) -> np.ndarray:
        return self._smallest.sorted().astype(np.uint32).view(np.float32)


class Distinct:
    """The number of distinct int64 keys: exact below `size`, an estimate beyond that. The key 0 does not count.

    Keys are uniformly distributed hashes. If x is the largest of the `size` smallest keys divided by 2^64, the estimate
    is (size - 1) / x, with a standard error of 1 / sqrt(size - 2), 0.8 %. Source: Bar-Yossef et al., Counting Distinct
    Elements in a Data Stream, 2002; Beyer et al., On Synopses for Distinct-Value Estimation, 2007.
    """

    def __init__(self, size: int = _SIZE) -> None:
        self._size, self._smallest = size, _Smallest(size, distinct=True)

    def add(self, keys: pa.Array | pa.ChunkedArray) -> None:
        """Adds an int64 array."""
        found = pc.unique(keys).to_numpy(zero_copy_only=False).view(np.uint64)
        self._smallest.add(found[found != 0])

    def merge(self, other: "Distinct") -> None:
        """Adds the keys of another Distinct of the same size."""
        self._smallest.merge(other._smallest)

    @property
    def count(self) -> int:
        smallest = self._smallest.sorted()
        if len(smallest) < self._size:
            return len(smallest)
        return round((self._size - 1) / (float(smallest[-1]) / 2.0**64))


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
        part = Moments()
        part.count, part.mean, part.min, part.max = len(values), values.mean(), values.min(), values.max()
        part.squares = np.square(values - part.mean).sum()
        self.merge(part)

    def merge(self, other: "Moments") -> None:
        if not other.count:
            return
        # Chan et al., "Updating formulae and a pairwise algorithm for computing sample variances", 1979.
        total, delta = self.count + other.count, other.mean - self.mean
        self.squares += other.squares + delta * delta * self.count * other.count / total
        self.mean += delta * other.count / total
        self.count, self.min, self.max = total, min(self.min, other.min), max(self.max, other.max)

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
