"""The gradients of the embedding rows, from those of each batch to those of an optimizer step."""

import dataclasses
import math

import numpy as np

from ctr_trainer.embedding import row_kernels
from ctr_trainer.embedding.distinct import distinct, positions_of
from ctr_trainer.embedding.table import Table
from ctr_trainer.errors import UserError

# A factor nearer to 1 than float32 can tell is not worth a pass over the gradients.
_NO_FACTOR = 1e-7


@dataclasses.dataclass
class SourceGradients:
    """One table's part of an optimizer step.

    Attributes:
      source: its `Cache` or `Table`.
      keys: int64[U], distinct.
      slots: int64[U], where their rows are; -1 has none.
      sums: float32[U, dim] for each segment, those of equal keys summed.
    """

    source: object
    keys: np.ndarray
    slots: np.ndarray
    sums: list[np.ndarray]


class RowGradients:
    """Sums the gradients g_k of a step's micro-batches k, then regularizes and clips them:

        g = scale * sum_k weight_k g_k + l2 * share * w;  g *= min(1, clip_norm / |g|)

    over the rows w of all keys in the step, each distinct key once. |g| is the norm over all rows of all tables in this
    worker's step: other workers clip theirs by themselves. `share` is 1, but in a `Cache` that knows how often a row is
    met, where it is `Cache.l2_shares`: K workers that all met it would decay it K times, and one worker does it once.

    Args:
      l2: of the loss plus l2 / 2 * sum w^2 over the distinct rows of the step, so that a row decays when it is used.
      clip_norm: 0 does not clip.

    Raises:
      UserError: one of them is negative.
    """

    def __init__(self, l2=0.0, clip_norm=0.0):
        if l2 < 0:
            raise UserError(f"--embedding_l2={l2:g} must be at least 0")
        if clip_norm < 0:
            raise UserError(f"--clip_norm={clip_norm:g} must be at least 0")
        self._l2, self._clip_norm = l2, clip_norm
        self._batches = []

    def add(self, batch, weight=1.0):
        """Adds a micro-batch: a `SourceGradients` a table, the same tables in the same order each time."""
        if abs(weight - 1) > _NO_FACTOR:
            batch = [dataclasses.replace(part, sums=[_times(g, weight) for g in part.sums]) for part in batch]
        self._batches.append(batch)

    def take(self, scale=1.0):
        """-> list of `SourceGradients`, a table each: the step's; starts anew."""
        batches, self._batches = self._batches, []
        parts = batches[0] if len(batches) == 1 else [_merged(parts) for parts in zip(*batches, strict=True)]
        if abs(scale - 1) > _NO_FACTOR:
            parts = [dataclasses.replace(part, sums=[_times(g, scale) for g in part.sums]) for part in parts]
        if self._l2:
            for part in parts:
                part.sums = self._decayed(part)
        if self._clip_norm:
            norm = math.sqrt(sum(float(np.vdot(g, g)) for part in parts for g in part.sums))
            if norm > self._clip_norm:
                for part in parts:
                    part.sums = [_times(g, self._clip_norm / norm) for g in part.sums]
        return parts

    def _decayed(self, part):
        """-> the sums with the gradient of the L2 term added."""
        start, decayed, l2 = 0, [], np.float32(self._l2)
        shares = part.source.l2_shares(part.slots)
        if shares is not None:
            l2 = l2 * shares[:, None]
        for gradient in part.sums:
            weights = np.empty_like(gradient)
            with part.source.lock:
                row_kernels.take(part.source.rows, part.slots, start, weights)
            decayed.append(gradient + l2 * weights)
            start += gradient.shape[1]
        return decayed


def _merged(parts):
    """-> one SourceGradients of a table's micro-batches."""
    source = parts[0].source
    keys = distinct([part.keys for part in parts])
    slots = np.full(len(keys), -1, np.int64)
    sums = [np.zeros((len(keys), gradient.shape[1]), np.float32) for gradient in parts[0].sums]
    for part in parts:
        at = positions_of(keys, part.keys)
        slots[at] = part.slots
        for total, gradient in zip(sums, part.sums, strict=True):
            row_kernels.add(total, at, gradient)
    if isinstance(source, Table):
        # A later micro-batch's new rows may have evicted an earlier one's, whose gradients then are of no row.
        slots = source.find(keys)
    return SourceGradients(source, keys, slots, sums)


def _times(gradient, factor):
    return gradient * np.float32(factor)
