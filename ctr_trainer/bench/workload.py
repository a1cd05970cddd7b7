"""Workload W1, the default of `bench`: 26 sparse fields and 13 numbers for DeepFM. The same 64 batches are repeated.

Ids follow Zipf(1.2), truncated to 2,000,000 / 26 values per field; labels follow Bernoulli(0.25). W1 measures speed
only, as its labels do not depend on its features.
"""

import itertools
from collections.abc import Iterator

import numpy as np

from ctr_trainer.data.batch import Batch
from ctr_trainer.features.columns import Statistics
from ctr_trainer.features.spec import DenseFeature, FeatureSpec, Label, SparseFeature

FIELDS, DENSE, DIM, VOCABULARY = 26, 13, 16, 2_000_000
PER_FIELD = VOCABULARY // FIELDS
HIDDEN_UNITS = (256, 128, 64)
LEARNING_RATE, INITIAL_ACCUMULATOR, STDDEV = 0.01, 0.1, 0.01
BATCHES = 64


def arrays(batch_size: int, rank: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns (ids, dense, labels) of all batches; the rank is the random seed.

    `ids` is int64[64, B, 26], row numbers of one vocabulary; `dense` is float32[64, B, 13]; `labels` is float32[64, B].
    """
    rng = np.random.default_rng(rank)
    ids = np.minimum(rng.zipf(1.2, (BATCHES, batch_size, FIELDS)), PER_FIELD - 1).astype(np.int64)
    dense = rng.standard_normal((BATCHES, batch_size, DENSE), dtype=np.float32)
    labels = (rng.random((BATCHES, batch_size)) < 0.25).astype(np.float32)
    return ids + np.arange(FIELDS, dtype=np.int64) * PER_FIELD, dense, labels


def spec() -> FeatureSpec:
    """Returns the feature spec of W1."""
    return FeatureSpec(
        name="w1",
        label=Label("label"),
        dense=tuple(DenseFeature(f"I{i}", f"I{i}") for i in range(DENSE)),
        sparse=tuple(SparseFeature(f"C{i}", f"C{i}", DIM, f"C{i}") for i in range(FIELDS)),
    )


class W1Batches:
    """Batches of W1 in memory, which the Estimator reads in place of a `BatchReader`.

    Args:
      batch_size: examples of a batch.
      count: number of batches to yield; None for infinitely many.
      rank: rank of the worker; each rank has different batches.
    """

    def __init__(self, batch_size: int, count: int | None, rank: int = 0) -> None:
        self.spec = spec()
        self.statistics: Statistics = {}
        self.batch_size = batch_size
        self._count = count
        ids, dense, labels = arrays(batch_size, rank)
        weights = np.ones(batch_size, np.float32)
        table = self.spec.tables[0].name
        self._batches = [  # Key 0 means no value.
            Batch(batch_size, {table: i + 1}, {}, d, y, weights) for i, d, y in zip(ids, dense, labels, strict=True)
        ]

    def __iter__(self) -> Iterator[Batch]:
        yield from itertools.islice(itertools.cycle(self._batches), self._count)
