"""The embedding inputs that the rows of one table feed."""

import math

from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, SEQUENCE


class TableInputs:
    """What of a table's features the model asked for, and which columns of a row each tensor takes.

    A row's weights are an embedding, where `embedding` or a sequence was asked for, then a linear weight, where
    `linear` was. Keys that no tensor takes are not looked up: a model without histories makes no rows for them.

    Args:
      table: `TableFeatures`.
      segments: {kind: placeholder} of the table, see `FedFeatures`.
    """

    def __init__(self, table, segments):
        self._table, self._segments = table, segments
        self._pooled = EMBEDDING in segments or LINEAR in segments
        self._sequences = [f for f in table.sequences if f"{SEQUENCE}/{f.name}" in segments]

    def config(self, config, limits, seed):
        """-> the TableConfig to train with.

        Args:
          config: `EmbeddingConfig`.
          limits: `TableLimits`.
          seed: of new rows.
        """
        # A uniform distribution on +-s has the deviation s / sqrt(3); linear weights start at 0.
        scales = {EMBEDDING: config.stddev * math.sqrt(3), LINEAR: 0.0}
        return TableConfig(
            name=self._table.name,
            dims=tuple(dim for _, dim in self._parts()),
            init_scales=tuple(scales[kind] for kind, _ in self._parts()),
            optimizer=config.optimizer,
            seed=seed,
            min_frequency=limits.min_frequency,
            max_rows=limits.max_rows,
            eviction=limits.eviction,
            ttl_steps=limits.ttl_steps,
        )

    def lookup(self, batch):
        """-> the Lookup of a Batch."""
        keys = batch.keys[self._table.name]
        bags = [(batch.bags[f.name], f) for f in self._table.bags] if self._pooled else []
        sequences = [(batch.bags[f.name], f) for f in self._sequences]
        return Lookup(
            keys if self._pooled else keys[:, :0],
            [(bag.values, bag.splits, f.combiner, bag.weights) for bag, f in bags],
            [(bag.values, bag.splits, f.max_length) for bag, f in sequences],
        )

    def gather(self, lookup, rows, slots):
        """-> feed_dict of the tensors, from a table's rows and the slots of the lookup's keys."""
        feed, start, parts = {}, 0, self._parts()
        distinct = lookup.take(rows, slots, sum(dim for _, dim in parts))
        for kind, dim in parts:
            if kind in self._segments:
                feed[self._segments[kind]] = lookup.gather(distinct, start, dim)
            if kind == EMBEDDING:
                for number, tensor in enumerate(self._sequence_tensors()):
                    feed[tensor] = lookup.gather_sequence(number, distinct, start, dim)
            start += dim
        return feed

    def sum_gradients(self, lookup, gradients):
        """-> for each part of a row, float32[U, dim]: the gradients of equal keys summed.

        Args:
          gradients: by the name of the tensor; one that the loss does not depend on has none.
        """
        sums = []
        for kind, dim in self._parts():
            gradient = gradients.get(self._segments[kind].name) if kind in self._segments else None
            of_sequences = [gradients.get(t.name) for t in self._sequence_tensors()] if kind == EMBEDDING else []
            sums.append(lookup.sum_gradients(dim, gradient, of_sequences))
        return sums

    def _parts(self):
        """-> (kind, dim) of each part of a row's weights."""
        embeds = EMBEDDING in self._segments or bool(self._sequences)
        return [(EMBEDDING, self._table.dim)] * embeds + [(LINEAR, 1)] * (LINEAR in self._segments)

    def _sequence_tensors(self):
        return [self._segments[f"{SEQUENCE}/{f.name}"] for f in self._sequences]
