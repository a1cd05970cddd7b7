"""Compiled loops over rows: initial values, copies and sums. The optimizers are in `optimizer_kernels`.

The style of these loops was measured with an Adagrad step on 8,600 rows of 17 weights and 17 accumulators (0.30 ms).
Column indices are unsigned: Numba checks whether a signed index is negative, which prevents vectorization (0.96 ms).
Rows are indexed in full, because a view of a row inside a branch counts references (0.65 ms). There is no fused
multiply-add and no reordering (`fastmath` is off), so equal inputs give equal bits on every machine.
"""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import AHEAD, KEYS, kernel, mix, prefetch_row
from ctr_trainer.system.messages.errors import diverged

ROWS = types.Array(types.float32, 2, "C", readonly=True)
# Rows in a message, not aligned. Copying them to aligned memory would cost as much as adding them.
MESSAGE_ROWS = types.Array(types.float32, 2, "C", readonly=True, aligned=False)
ROWS_OUT = types.Array(types.float32, 2, "C")
_WIDTHS = types.Array(types.int64, 1, "C")
_FLOATS = types.Array(types.float32, 1, "C")
_ZERO = np.float32(0)
# Without the sign bit, the bits of a float32 that is not finite are, as an integer, at least the bits of infinity. The
# last constant is the number of values that are checked together.
_MESSAGE_BITS = types.Array(types.int32, 1, "C", readonly=True, aligned=False)
_NO_SIGN, _INFINITY = np.int32(0x7FFFFFFF), np.int32(0x7F800000)
_CHECKED = 4096


@kernel(types.void(ROWS_OUT, KEYS, types.uint64, _WIDTHS, _FLOATS, _FLOATS))
def initialize(
    rows: np.ndarray, keys: np.ndarray, seed: np.uint64, dims: np.ndarray, scales: np.ndarray, state: np.ndarray
) -> None:
    """Sets rows[i] = the initial row of keys[i]: weights uniform in (-scale, scale) of their segment, then `state`.

    A weight is an odd 25-bit integer from the hash of (seed, key, position), times scale / 2**24. Only the product is
    rounded, so the bits are the same on every machine. The key 0 gets zeros.
    """
    for i in range(keys.size):
        if keys[i] == 0:
            rows[i] = _ZERO
            continue
        hashed = mix(mix(seed) ^ np.uint64(keys[i]))
        start = np.uint64(0)
        for segment in range(dims.size):
            step = scales[segment] * np.float32(2.0**-24)
            stop = start + np.uint64(dims[segment])
            if step == _ZERO:
                for position in range(start, stop):
                    rows[i, position] = _ZERO
            else:
                for position in range(start, stop):
                    draw = np.int32(mix(hashed + position) >> np.uint64(40))
                    rows[i, position] = np.float32(2 * draw + 1 - (1 << 24)) * step
            start = stop
        for position in range(np.uint64(state.size)):
            rows[i, start + position] = state[position]


@kernel(types.void(ROWS, SLOTS, types.uint64, ROWS_OUT))
def take(rows: np.ndarray, slots: np.ndarray, start: int, out: np.ndarray) -> None:
    """Sets out[i] = rows[slots[i], start:start + out.shape[1]]; zeros for the slot -1."""
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(rows, slots[i + AHEAD])
        slot = slots[i]
        if slot < 0:
            for d in range(np.uint64(out.shape[1])):
                out[i, d] = _ZERO
        else:
            for d in range(np.uint64(out.shape[1])):
                out[i, d] = rows[slot, start + d]


@kernel(types.void(ROWS, SLOTS))
def fetch(rows: np.ndarray, slots: np.ndarray) -> None:
    """Prefetches the rows at `slots` for the next loops over them; the slot -1 is skipped."""
    for i in range(slots.size):
        if slots[i] >= 0:
            prefetch_row(rows, slots[i])


@kernel(types.void(ROWS_OUT, SLOTS, MESSAGE_ROWS))
def put(rows: np.ndarray, slots: np.ndarray, values: np.ndarray) -> None:
    """Sets rows[slots[i]] = values[i]; the slot -1 is skipped."""
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(rows, slots[i + AHEAD])
        slot = slots[i]
        if slot >= 0:
            for d in range(np.uint64(rows.shape[1])):
                rows[slot, d] = values[i, d]


@kernel(types.void(ROWS_OUT, SLOTS, ROWS))
def add(rows: np.ndarray, slots: np.ndarray, deltas: np.ndarray) -> None:
    """Computes rows[slots[i]] += deltas[i]; the slot -1 is skipped."""
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            for d in range(np.uint64(rows.shape[1])):
                rows[slot, d] += deltas[i, d]


@kernel(types.int64(_MESSAGE_BITS))
def _first_not_finite(bits: np.ndarray) -> int:
    for start in range(0, bits.size, _CHECKED):
        part, most = bits[start : start + _CHECKED], np.int32(0)
        for i in range(np.uint64(part.size)):
            most = max(most, part[i] & _NO_SIGN)  # A maximum of integers is vectorized.
        if most >= _INFINITY:
            while bits[start] & _NO_SIGN < _INFINITY:
                start += 1
            return start
    return -1


def first_not_finite(rows: np.ndarray) -> int:
    """Returns the index of the first row of float32[n, width] with an infinity or a NaN; -1 if there is none."""
    first = _first_not_finite(rows.reshape(-1).view(np.int32))
    return first // rows.shape[1] if first >= 0 else -1


def refuse_not_finite(keys: np.ndarray, rows: np.ndarray, what: str) -> None:
    """Raises UserError, which begins with `what` and names a key, if a value of float32[n, width] is not finite."""
    bad = first_not_finite(rows)
    if bad >= 0:
        raise diverged(f"{what} of key {keys[bad]} is not finite")
