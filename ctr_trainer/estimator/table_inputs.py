"""One table in a step: feeds its rows to the embedding inputs, and sums the gradients of these inputs per row."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from ctr_trainer.data.batch import Batch
from ctr_trainer.embedding.index.key_kernels import distinct, positions_of
from ctr_trainer.embedding.store.worker_rows import RowStep, WorkerRows, times, weighed
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.features.spec import TableFeatures, TableLimits
from ctr_trainer.features.tensors import EMBEDDING, LINEAR, PAIRS, SEQUENCE, VECTORS
from ctr_trainer.settings.embedding_config import EmbeddingConfig


@dataclasses.dataclass
class TableGradients:
    """The gradients of one table's rows in an optimizer step.

    Attributes:
      keys: int64[U], distinct.
      slots: int64[U], the slots of the keys' rows; -1 for a key without a row.
      sums: one float32[U, dim] per segment, the gradients summed over equal keys.
    """

    rows: WorkerRows
    keys: np.ndarray
    slots: np.ndarray
    sums: list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class TableLookup:
    """The lookup of a batch's keys in one table; `slots` are int64[U], the slots of the distinct keys."""

    rows: WorkerRows
    inputs: "TableInputs"
    lookup: Lookup
    slots: np.ndarray

    def gradients(self, gradients: Mapping[str, np.ndarray]) -> TableGradients:
        """Returns the gradients of the rows; see `TableInputs.sum_gradients`."""
        sums = self.inputs.sum_gradients(self.lookup, gradients)
        return TableGradients(self.rows, self.lookup.unique, self.slots, sums)


@dataclasses.dataclass(frozen=True)
class LookedUp:
    """A batch whose rows were looked up: the feed_dict of the embedding inputs, and the lookup in each table."""

    feed: dict[tf.Tensor, np.ndarray]
    tables: list[TableLookup]


class RowGradients:
    """Sums the gradients g_k of a step's micro-batches k, then regularizes and clips the sum:

        g = sum_k weighed(g_k) + l2 * share * w;  g *= min(1, clip_norm / |g|)

    for the rows w of all distinct keys in the step. `worker_rows.weighed` defines the weights. |g| is the norm over all
    rows of all tables in this worker's step; each worker clips its own step. `share` is `WorkerRows.l2_shares`. Without
    it, a row that K workers use would decay K times as much as with one worker.

    Args:
      merge_factor: see `merging.gradient_factor`.
      l2: adds l2 / 2 * sum w^2 over the distinct rows of the step to the loss, so a row decays when it is used. Rows of
        a dense optimizer also decay in the other steps, see `table.missed_steps`.
      clip_norm: maximum norm; 0 disables clipping.
    """

    def __init__(self, merge_factor: float, l2: float = 0.0, clip_norm: float = 0.0) -> None:
        self._merge_factor, self._l2, self._clip_norm = merge_factor, l2, clip_norm
        self._batches: list[tuple[list[TableGradients], float]] = []

    def add(self, batch: list[TableGradients], weight: float = 1.0) -> None:
        """Adds a micro-batch, always with the same tables in the same order. For `weight` see `worker_rows.weighed`."""
        self._batches.append((batch, weight))

    def take(self, step: RowStep) -> list[TableGradients]:
        """Returns the gradients of a step, one element per table, and removes its micro-batches."""
        weighed_batches, self._batches = self._batches, []
        for batch, weight in weighed_batches:
            for part in batch:
                part.sums = [weighed(g, weight, step.share, self._merge_factor) for g in part.sums]
        batches = [batch for batch, _ in weighed_batches]
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

    def _decayed(self, part: TableGradients) -> list[np.ndarray]:
        """Returns the sums with the gradient of the L2 term added."""
        start, decayed = 0, []
        shares = part.rows.l2_shares(part.slots)
        l2 = np.float32(self._l2) if shares is None else np.float32(self._l2) * shares[:, None]
        for gradient in part.sums:
            weights = np.empty_like(gradient)
            with part.rows.locked():
                row_kernels.take(part.rows.rows, part.slots, start, weights)
            decayed.append(gradient + l2 * weights)
            start += gradient.shape[1]
        return decayed


def _merged(parts: Sequence[TableGradients]) -> TableGradients:
    """Returns the summed gradients of a table's micro-batches."""
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

    def gather(self, lookup: Lookup, rows: np.ndarray, slots: np.ndarray) -> dict[tf.Tensor, np.ndarray]:
        """Returns the feed_dict of the tensors, from the table's rows and the slots of the lookup's keys."""
        feed: dict[tf.Tensor, np.ndarray] = {}
        start, parts = 0, self._parts()
        distinct = lookup.take(rows, slots, sum(dim for _, dim in parts))
        for kind, dim in parts:
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
        """Returns one float32[U, dim] for each part of a row, the gradients summed over equal keys.

        `gradients` is a dict of tensor name -> gradient, without the tensors on which the loss does not depend.
        """

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
