"""One batch's keys, each distinct one once."""

import threading

import numpy as np

from ctr_trainer.embedding import lookup_kernels, row_kernels
from ctr_trainer.embedding.index import Index

_ALIGNMENT = 64
_scratch = threading.local()


class Lookup:
    """The way from one batch's keys to its embedding tensors, and back for their gradients.

    The keys of single-valued features and of bags are deduplicated together, so a table is probed once for each
    distinct key and an optimizer makes one step for it.

    Attributes:
      unique: int64[U], the distinct keys in the order of first appearance, without the key 0 ("no value").
    """

    def __init__(self, keys, bags=()):
        """
        Args:
          keys: int64[B, F], the single-valued features; F may be 0.
          bags: a (values int64[n], splits int32[B + 1], mean) for each multi-valued feature: row b's keys are
            values[splits[b]:splits[b + 1]]; they are averaged where `mean`, otherwise summed.
        """
        if keys.ndim != 2:
            raise ValueError(f"keys of shape {keys.shape}, expected [B, F]")
        self._examples, self._features = keys.shape
        self._columns = self._features + len(bags)
        index = _empty_index()
        self._positions = _positions(index, keys.reshape(-1))
        self._bags = []
        for column, (values, splits, mean) in enumerate(bags, start=self._features):
            if len(splits) != self._examples + 1 or splits[0] != 0 or splits[-1] != len(values):
                raise ValueError(f"column {column}: splits do not cut {len(values)} values into {self._examples} bags")
            splits = np.ascontiguousarray(splits, np.int32)
            self._bags.append((_positions(index, values), splits, bool(mean), column))
        self.unique = index.keys.copy()

    def gather(self, rows, slots, start, dim):
        """The embeddings of one segment.

        Args:
          rows: float32[n, width], a table's.
          slots: int64[U], the slot of each of `unique`; -1 reads zeros.
          start: the segment's first column in a row.
          dim: its width.

        Returns:
          float32[B, F + len(bags), dim], freshly allocated, C-contiguous and 64-byte aligned, so that TensorFlow feeds
          it without a copy. A bag's is the sum or the mean over its non-zero keys, zeros for an empty one.
        """
        distinct = np.empty((len(self.unique), dim), np.float32)
        row_kernels.take(rows, slots, start, distinct)
        out = _aligned_empty(self._examples * self._columns, dim)
        if self._features:
            lookup_kernels.spread(distinct, self._positions, self._features, self._columns, out)
        for positions, splits, mean, column in self._bags:
            lookup_kernels.pool(distinct, positions, splits, mean, column, self._columns, out)
        return out.reshape(self._examples, self._columns, dim)

    def sum_gradients(self, gradient):
        """float32[B, F + len(bags), dim] -> float32[U, dim]: the gradients of equal keys summed.

        Each key of a mean bag gets the bag's gradient divided by the number of its non-zero keys.
        """
        expected = (self._examples, self._columns, gradient.shape[-1])
        if gradient.shape != expected:
            raise ValueError(f"gradient of shape {gradient.shape}, expected {expected}")
        flat = np.ascontiguousarray(gradient, np.float32).reshape(-1, gradient.shape[-1])
        out = np.zeros((len(self.unique), gradient.shape[-1]), np.float32)
        if self._features:
            lookup_kernels.sum_spread(flat, self._positions, self._features, self._columns, out)
        for positions, splits, mean, column in self._bags:
            lookup_kernels.sum_pool(flat, positions, splits, mean, column, self._columns, out)
        return out


def distinct(parts):
    """A list of int64 arrays -> int64[U]: the distinct keys of them all in the order of first appearance, without 0."""
    if len(parts) == 1:
        return parts[0]
    index = _empty_index()
    _positions(index, np.concatenate(parts))
    return index.keys.copy()


def positions_of(unique, keys):
    """-> int64[n]: for each of `keys` its place in `unique`, distinct keys among which it is."""
    index = _empty_index()
    _positions(index, unique)
    return _positions(index, keys).astype(np.int64)


def _empty_index():
    """This thread's index, emptied: kept between batches, so that it stays in the core's cache."""
    if not hasattr(_scratch, "index"):
        _scratch.index = Index()
    _scratch.index.clear()
    return _scratch.index


def _positions(index, keys):
    """-> int32[n]: for each key its place among the distinct ones, -1 for the key 0."""
    positions = np.empty(len(keys), np.int32)
    index.add_all(np.ascontiguousarray(keys, np.int64), positions)
    return positions


def _aligned_empty(rows, dim):
    # Not a reused buffer: TensorFlow may still read it after the step, and the allocator gives the same pages again.
    room = np.empty(rows * dim * 4 + _ALIGNMENT, np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    return room[start : start + rows * dim * 4].view(np.float32).reshape(rows, dim)
