"""Compiled loops over row versions, at the service."""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.cpu_prefetch import AHEAD, prefetch, prefetch_row
from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.table.row_kernels import MESSAGE_ROWS, ROWS_OUT

VERSIONS = types.Array(types.uint32, 1, "C", readonly=True)
VERSIONS_OUT = types.Array(types.uint32, 1, "C")
POSITIONS_OUT = types.Array(types.int64, 1, "C")


@numba.njit(types.int64(VERSIONS, SLOTS, VERSIONS, VERSIONS_OUT, POSITIONS_OUT), nogil=True, cache=True)
def differ(current, slots, known, versions, positions):
    """versions[i] = the version at slots[i], 0 for the slot -1; `positions` gets each i whose version is not known[i].

    Returns:
      how many positions there are.
    """
    count = 0
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(current, slots[i + AHEAD])
        version = np.uint32(0)
        if slots[i] >= 0:
            version = current[slots[i]]
        versions[i] = version
        if version != known[i]:
            positions[count] = i
            count += 1
    return count


@numba.njit(
    types.int64(ROWS_OUT, VERSIONS_OUT, SLOTS, VERSIONS, MESSAGE_ROWS, types.uint32, POSITIONS_OUT, ROWS_OUT),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def merge(rows, current, slots, known, deltas, number, positions, newer):
    """Adds `deltas` to the rows at `slots`, and collects the rows whose version was not known[i].

    Args:
      slots: int64[U]; no slot may be -1.
      number: the new version of the rows.
      positions, newer: out: each i whose version was not known[i], and that row with its delta added.

    Returns:
      how many of `positions` and `newer` are filled.
    """
    count = 0
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch(current, slots[i + AHEAD])
            prefetch_row(rows, slots[i + AHEAD])
        slot = slots[i]
        if current[slot] == known[i]:
            for d in range(np.uint64(rows.shape[1])):
                rows[slot, d] += deltas[i, d]
        else:
            for d in range(np.uint64(rows.shape[1])):
                value = rows[slot, d] + deltas[i, d]
                rows[slot, d] = value
                newer[count, d] = value
            positions[count] = i
            count += 1
        current[slot] = number
    return count
