"""One table in a step: its rows feed the embedding inputs, and their gradients become the rows' step."""

import dataclasses
import math

import numpy as np

from ctr_trainer.embedding.index.key_kernels import distinct, positions_of
from ctr_trainer.embedding.store.worker_rows import WorkerRows
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.embedding.worker.row_step import times, weighed
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, SEQUENCE


@dataclasses.dataclass
class TableGradients:
    """One table's part of an optimizer step.

    Attributes:
      rows: its `WorkerRows`.
      keys: int64[U], distinct.
      slots: int64[U], where their rows are; -1 has none.
      sums: float32[U, dim] for each segment, those of equal keys summed.
    """

    rows: WorkerRows
    keys: np.ndarray
    slots: np.ndarray
    sums: list[np.ndarray]


class RowGradients:
    """Sums the gradients g_k of a step's micro-batches k, then regularizes and clips them:

        g = sum_k weighed(g_k) + l2 * l2_share * w;  g *= min(1, clip_norm / |g|)

    over the rows w of all keys in the step, each distinct key once, with `row_step.weighed`. |g| is the norm over all
    rows of all tables in this worker's step: other workers clip theirs by themselves. `l2_share` is
    `WorkerRows.l2_shares`: K workers that all met a row would decay it K times, and one worker does it once.

    Args:
      merge_factor: of `merging.gradient_factor`.
      l2: of the loss plus l2 / 2 * sum w^2 over the distinct rows of the step, so that a row decays when it is used.
      clip_norm: 0 does not clip.
    """

    def __init__(self, merge_factor, l2=0.0, clip_norm=0.0):
        self._merge_factor, self._l2, self._clip_norm = merge_factor, l2, clip_norm
        self._batches = []

    def add(self, batch, weight=1.0):
        """Adds a micro-batch.

        Args:
          batch: list of `TableGradients`, the same tables in the same order each time.
          weight: see `row_step.weighed`.
        """
        self._batches.append((batch, weight))

    def take(self, step):
        """Returns a list of `TableGradients`, a table each, of a `RowStep`; starts anew."""
        batches, self._batches = self._batches, []
        for batch, weight in batches:
            for part in batch:
                part.sums = [weighed(g, weight, step.share, self._merge_factor) for g in part.sums]
        batches = [batch for batch, _ in batches]
        parts = batches[0] if len(batches) == 1 else [_merged(parts) for parts in zip(*batches, strict=True)]
        if self._l2:
            for part in parts:
                part.sums = self._decayed(part)
        if self._clip_norm:
            norm = math.sqrt(sum(float(np.vdot(g, g)) for part in parts for g in part.sums))
            if norm > self._clip_norm:
                for part in parts:
                    part.sums = [times(g, self._clip_norm / norm) for g in part.sums]
        return parts

    def _decayed(self, part):
        """Returns the sums with the gradient of the L2 term added."""
        start, decayed, l2 = 0, [], np.float32(self._l2)
        shares = part.rows.l2_shares(part.slots)
        if shares is not None:
            l2 = l2 * shares[:, None]
        for gradient in part.sums:
            weights = np.empty_like(gradient)
            with part.rows.locked():
                row_kernels.take(part.rows.rows, part.slots, start, weights)
            decayed.append(gradient + l2 * weights)
            start += gradient.shape[1]
        return decayed


def _merged(parts):
    """Returns one TableGradients of a table's micro-batches."""
    rows = parts[0].rows
    keys = distinct([part.keys for part in parts])
    slots = np.full(len(keys), -1, np.int64)
    sums = [np.zeros((len(keys), gradient.shape[1]), np.float32) for gradient in parts[0].sums]
    for part in parts:
        at = positions_of(keys, part.keys)
        slots[at] = part.slots
        for total, gradient in zip(sums, part.sums, strict=True):
            row_kernels.add(total, at, gradient)
    return TableGradients(rows, keys, rows.found_again(keys, slots), sums)


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
        """Returns the TableConfig to train with.

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
        """Returns the Lookup of a Batch."""
        keys = batch.keys[self._table.name]
        bags = [(batch.bags[f.name], f) for f in self._table.bags] if self._pooled else []
        sequences = [(batch.bags[f.name], f) for f in self._sequences]
        return Lookup(
            keys if self._pooled else keys[:, :0],
            [(bag.values, bag.splits, f.combiner, bag.weights) for bag, f in bags],
            [(bag.values, bag.splits, f.max_length) for bag, f in sequences],
        )

    def gather(self, lookup, rows, slots):
        """Returns feed_dict of the tensors, from a table's rows and the slots of the lookup's keys."""
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
        """Returns for each part of a row, float32[U, dim]: the gradients of equal keys summed.

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
        """Returns (kind, dim) of each part of a row's weights."""
        embeds = EMBEDDING in self._segments or bool(self._sequences)
        return [(EMBEDDING, self._table.dim)] * embeds + [(LINEAR, 1)] * (LINEAR in self._segments)

    def _sequence_tensors(self):
        return [self._segments[f"{SEQUENCE}/{f.name}"] for f in self._sequences]
