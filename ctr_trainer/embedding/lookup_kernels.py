"""Compiled loops between the distinct rows of a batch and its [B, columns, dim] tensors.

A batch's rows are first taken from the table once a distinct key, and spread from that small, cache-resident copy: on
26,624 keys of 8,600 distinct ones, dim 16, 0.3 ms instead of 0.6 ms. Columns are unsigned for the reason that
`row_kernels` gives.
"""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.row_kernels import ROWS, ROWS_OUT

_POSITIONS = types.Array(types.int32, 1, "C", readonly=True)
_ZERO = np.float32(0)
_SPREAD = types.void(ROWS, _POSITIONS, types.int64, types.int64, ROWS_OUT)
_POOL = types.void(ROWS, _POSITIONS, _POSITIONS, types.boolean, types.int64, types.int64, ROWS_OUT)


@numba.njit(_SPREAD, nogil=True, cache=True, error_model="numpy")
def spread(distinct, positions, features, columns, out):
    """out[b * columns + f] = distinct[positions[b * features + f]], zeros where the position is -1."""
    for b in range(out.shape[0] // columns):
        for f in range(features):
            position = positions[b * features + f]
            target = b * columns + f
            if position < 0:
                for d in range(np.uint64(out.shape[1])):
                    out[target, d] = _ZERO
            else:
                for d in range(np.uint64(out.shape[1])):
                    out[target, d] = distinct[position, d]


@numba.njit(nogil=True, cache=True)
def _count(positions, start, stop):
    count = 0
    for i in range(start, stop):
        count += positions[i] >= 0
    return count


@numba.njit(_POOL, nogil=True, cache=True, error_model="numpy")
def pool(distinct, positions, splits, mean, column, columns, out):
    """out[b * columns + column] = sum or mean of distinct[positions[splits[b]:splits[b + 1]]], zeros if empty."""
    for b in range(splits.size - 1):
        target = b * columns + column
        for d in range(np.uint64(out.shape[1])):
            out[target, d] = _ZERO
        for i in range(splits[b], splits[b + 1]):
            position = positions[i]
            if position >= 0:
                for d in range(np.uint64(out.shape[1])):
                    out[target, d] += distinct[position, d]
        if mean:
            count = np.float32(max(_count(positions, splits[b], splits[b + 1]), 1))
            for d in range(np.uint64(out.shape[1])):
                out[target, d] /= count


@numba.njit(_SPREAD, nogil=True, cache=True, error_model="numpy")
def sum_spread(gradient, positions, features, columns, out):
    """out[positions[b * features + f]] += gradient[b * columns + f]; the position -1 is skipped."""
    for b in range(gradient.shape[0] // columns):
        for f in range(features):
            position = positions[b * features + f]
            source = b * columns + f
            if position >= 0:
                for d in range(np.uint64(out.shape[1])):
                    out[position, d] += gradient[source, d]


@numba.njit(_POOL, nogil=True, cache=True, error_model="numpy")
def sum_pool(gradient, positions, splits, mean, column, columns, out):
    """Adds gradient[b * columns + column], divided by the bag's count where `mean`, to each of bag b's keys."""
    for b in range(splits.size - 1):
        source = b * columns + column
        share = np.float32(1)
        if mean:
            share = np.float32(max(_count(positions, splits[b], splits[b + 1]), 1))
        for i in range(splits[b], splits[b + 1]):
            position = positions[i]
            if position >= 0:
                for d in range(np.uint64(out.shape[1])):
                    out[position, d] += gradient[source, d] / share
