"""Workload W1, the default of `bench`: 26 sparse fields and 13 numbers for DeepFM; batches are made once and cycled.

Ids are Zipf(1.2), cut at 2,000,000 / 26 values a field; labels are Bernoulli(0.25); 64 batches. The numbers it
yields are about speed only: there is nothing to learn.
"""

import itertools

import numpy as np

from ctr_trainer.data.batch import Batch
from ctr_trainer.features.spec import DenseFeature, FeatureSpec, Label, SparseFeature

FIELDS, DENSE, DIM, VOCABULARY = 26, 13, 16, 2_000_000
PER_FIELD = VOCABULARY // FIELDS
HIDDEN_UNITS = (256, 128, 64)
LEARNING_RATE, INITIAL_ACCUMULATOR, STDDEV = 0.01, 0.1, 0.01
BATCHES = 64


def arrays(batch_size, rank=0):
    """-> (ids int64[64, B, 26] as row numbers of one vocabulary, dense float32[64, B, 13], labels float32[64, B])."""
    rng = np.random.default_rng(rank)
    ids = np.minimum(rng.zipf(1.2, (BATCHES, batch_size, FIELDS)), PER_FIELD - 1).astype(np.int64)
    dense = rng.standard_normal((BATCHES, batch_size, DENSE), dtype=np.float32)
    labels = (rng.random((BATCHES, batch_size)) < 0.25).astype(np.float32)
    return ids + np.arange(FIELDS, dtype=np.int64) * PER_FIELD, dense, labels


def spec():
    """-> W1's FeatureSpec."""
    return FeatureSpec(
        name="w1",
        label=Label("label"),
        dense=tuple(DenseFeature(f"I{i}", f"I{i}") for i in range(DENSE)),
        sparse=tuple(SparseFeature(f"C{i}", f"C{i}", DIM, f"C{i}") for i in range(FIELDS)),
    )


class W1Batches:
    """What a `BatchReader` is to the Estimator, from memory.

    Args:
      batch_size: examples of a batch.
      count: how many batches to yield; None for no end.
      rank: of the worker; each draws its own.
    """

    def __init__(self, batch_size, count, rank=0):
        self.spec = spec()
        self.statistics = {}
        self.batch_size = batch_size
        self._count = count
        ids, dense, labels = arrays(batch_size, rank)
        weights = np.ones(batch_size, np.float32)
        table = self.spec.tables[0].name
        self._batches = [  # key 0 stands for no value
            Batch(batch_size, {table: i + 1}, {}, d, y, weights) for i, d, y in zip(ids, dense, labels, strict=True)
        ]

    def __iter__(self):
        yield from itertools.islice(itertools.cycle(self._batches), self._count)
