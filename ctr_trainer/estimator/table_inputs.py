"""One table in a step: feeds its rows to the embedding inputs, and sums the gradients of these inputs per row."""

import math
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.features.spec import TableFeatures, TableLimits
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, PAIRS, SEQUENCE, VECTORS
from ctr_trainer.settings.embedding_config import EmbeddingConfig


class TableInputs:
    """The tensors of one table that a model uses, and the columns of a row that are fed to each tensor.

    A row's weights are an embedding if the model uses `embedding` or a sequence, then a linear weight if the model uses
    `linear`. Keys that no tensor uses are not looked up, so a model without histories creates no rows for their keys.

    Args:
      segments: dict of kind -> placeholder; see `FedFeatures`.
    """

    def __init__(self, table: TableFeatures, segments: Mapping[str, tf.Tensor]) -> None:
        self._table, self._segments = table, segments
        self._pooled = EMBEDDING in segments or LINEAR in segments
        kinds = SEQUENCE, PAIRS
        self._sequences = [f for f in table.sequences if any(f"{kind}/{f.name}" in segments for kind in kinds)]

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that `lookup` looks up, in its order."""
        pooled = self._table.pooled if self._pooled else ()
        return tuple(f.name for f in (*pooled, *self._sequences))

    def config(self, config: EmbeddingConfig, limits: TableLimits, seed: int) -> TableConfig:
        """Returns the `TableConfig` to train with; `seed` initializes new rows."""
        # A uniform distribution on +-s has the standard deviation s / sqrt(3). Linear weights start at 0.
        scales = {EMBEDDING: config.stddev * math.sqrt(3), LINEAR: 0.0}
        return TableConfig(
            name=self._table.name,
            dims=tuple(dim for _, dim in self._parts()),
            init_scales=tuple(scales[kind] for kind, _ in self._parts()),
            optimizer=config.row_optimizer,
            seed=seed,
            min_frequency=limits.min_frequency,
            max_rows=limits.max_rows,
            eviction=limits.eviction,
            ttl_steps=limits.ttl_steps,
        )

    def lookup(self, batch: Batch) -> Lookup:
        """Returns the `Lookup` of a batch."""
        keys = batch.keys[self._table.name]
        bags = [(batch.bags[f.name], f.combiner) for f in self._table.bags if f.combiner] if self._pooled else []
        sequences = [(batch.bags[f.name], f) for f in self._sequences]
        return Lookup(
            keys if self._pooled else keys[:, :0],
            [(bag.values, bag.splits, combiner, bag.weights) for bag, combiner in bags],
            [(bag.values, bag.splits, f.max_length) for bag, f in sequences],
        )

    def gather(self, lookup: Lookup, distinct: np.ndarray) -> dict[tf.Tensor, np.ndarray]:
        """Returns the feed_dict of the tensors; `distinct`, float32[U, weights], is the result of `WorkerRows.read`."""
        feed: dict[tf.Tensor, np.ndarray] = {}
        start = 0
        for kind, dim in self._parts():
            if kind in self._segments:
                feed[self._segments[kind]] = lookup.gather(distinct, start, dim)
            if kind == EMBEDDING:
                if VECTORS in self._segments:
                    feed[self._segments[VECTORS]] = lookup.vectors(distinct, start, dim)
                for number, f in enumerate(self._sequences):
                    if (padded := f"{SEQUENCE}/{f.name}") in self._segments:
                        feed[self._segments[padded]] = lookup.gather_sequence(number, distinct, start, dim)
                    if (pairs := f"{PAIRS}/{f.name}") in self._segments:
                        feed[self._segments[pairs]] = lookup.pairs(number)
            start += dim
        return feed

    def sum_gradients(self, lookup: Lookup, gradients: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Returns one float32[U, dim] for each part of a row, the gradients, by tensor name, summed over equal keys."""

        def of(kind: str) -> np.ndarray | None:
            return gradients.get(self._segments[kind].name) if kind in self._segments else None

        sums = []
        for kind, dim in self._parts():
            of_sequences = [of(f"{SEQUENCE}/{f.name}") for f in self._sequences] if kind == EMBEDDING else []
            of_vectors = of(VECTORS) if kind == EMBEDDING else None
            sums.append(lookup.sum_gradients(dim, of(kind), of_sequences, of_vectors))
        return sums

    def _parts(self) -> list[tuple[str, int]]:
        """Returns (kind, dim) of each part of a row's weights."""
        embeds = EMBEDDING in self._segments or bool(self._sequences)
        return [(EMBEDDING, self._table.dim)] * embeds + [(LINEAR, 1)] * (LINEAR in self._segments)
