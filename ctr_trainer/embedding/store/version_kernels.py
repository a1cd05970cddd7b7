"""Compiled loops over row versions, at the service and in a worker's cache.

A row and its base are read and written in one pass: their memory is cold, and each pass over it costs as much as the
arithmetic of several.
"""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.cpu_prefetch import AHEAD, prefetch, prefetch_row
from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_hash import KEYS
from ctr_trainer.embedding.table.row_kernels import MESSAGE_ROWS, ROWS, ROWS_OUT

# What a cache knows of a row besides its values, as bits.
STEPPED = np.uint8(1)
IN_FLIGHT = np.uint8(2)
_MOST_STEPS = 2**16 - 1

VERSIONS = types.Array(types.uint32, 1, "C", readonly=True)
_VERSIONS_OUT = types.Array(types.uint32, 1, "C")
_POSITIONS_OUT = types.Array(types.int64, 1, "C")
_STATE = types.Array(types.uint8, 1, "C", readonly=True)
_STEPS_OUT = types.Array(types.uint16, 1, "C")
_STATE_OUT = types.Array(types.uint8, 1, "C")
_FLOATS_OUT = types.Array(types.float32, 1, "C")


@numba.njit(types.int64(VERSIONS, SLOTS, VERSIONS, _VERSIONS_OUT, _POSITIONS_OUT), nogil=True, cache=True)
def differ(current, slots, known, versions, positions):
    """versions[i] = the version at slots[i], 0 at -1; fills `positions` where it is not known[i]. -> how many"""
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
    types.int64(ROWS_OUT, _VERSIONS_OUT, SLOTS, VERSIONS, MESSAGE_ROWS, types.uint32, _POSITIONS_OUT, ROWS_OUT),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def merge(rows, current, slots, known, deltas, number, positions, newer):
    """Adds `deltas` to the rows at `slots` and gives back those that were of another version than known[i].

    Args:
      slots: none is -1.
      number: what the rows' version becomes.
      positions, newer: out: which rows were not as the asker knew them, and what they are now.

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


@numba.njit(
    types.int64(KEYS, SLOTS, _STATE, VERSIONS, types.uint32, _POSITIONS_OUT),
    nogil=True,
    cache=True,
)
def find_stale(keys, slots, state, stamps, since, positions):
    """Fills `positions` with the keys without a slot, or with a row checked before `since`, not stepped. -> how many"""
    count = 0
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0 and since == 0:  # No row is so old: its stamp need not be brought from memory.
            continue
        if slot >= 0:
            stale = state[slot] == 0 and stamps[slot] < since
        else:
            stale = keys[i] != 0
        if stale:
            positions[count] = i
            count += 1
    return count


@numba.njit(types.void(_STATE_OUT, SLOTS), nogil=True, cache=True)
def mark_stepped(state, slots):
    """state[slots[i]] |= STEPPED; the slot -1 is skipped."""
    for i in range(slots.size):
        if slots[i] >= 0:
            state[slots[i]] |= STEPPED


@numba.njit(types.void(_STEPS_OUT, SLOTS), nogil=True, cache=True)
def count_step(steps, slots):
    """steps[slots[i]] += 1, up to what it holds; the slot -1 is skipped."""
    for i in range(slots.size):
        if slots[i] >= 0:
            steps[slots[i]] = min(steps[slots[i]] + 1, _MOST_STEPS)


@numba.njit(
    types.void(
        _STEPS_OUT,
        _FLOATS_OUT,
        _VERSIONS_OUT,
        SLOTS,
        types.int64,
        types.int64,
        types.int64,
        _FLOATS_OUT,
        _POSITIONS_OUT,
    ),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def take_rates(steps, met, since, slots, now, began, most, rates, taken):
    """Ends the window of the rows at `slots`, as `RowFrequency` says.

    Args:
      steps, met, since: by slot; steps of a row in this window, in those before, and when they began.
      now, began: the worker's steps so far, and when this window began.
      most: steps after which those so far count half.
      rates, taken: out: p, and the row's steps in this window.
    """
    for i in range(slots.size):
        slot = slots[i]
        taken[i] = steps[slot]
        if met[slot] == np.float32(0):
            since[slot] = began
        count, total = met[slot] + np.float32(steps[slot]), now - since[slot]
        rates[i] = np.float32(0)
        if total > 1:
            rates[i] = min(max((count - np.float32(1)) / np.float32(total - 1), np.float32(0)), np.float32(1))
        if total > most:
            count, since[slot] = count / np.float32(2), now - total // 2
        steps[slot], met[slot] = 0, count


@numba.njit(types.void(ROWS_OUT, ROWS_OUT, _STATE_OUT, SLOTS, ROWS_OUT), nogil=True, cache=True, error_model="numpy")
def take_changes(rows, base, state, slots, deltas):
    """deltas[i] = row - base of slots[i], which then is in flight: both become base + deltas[i], as the service's."""
    for i in range(slots.size):
        slot = slots[i]
        for d in range(np.uint64(rows.shape[1])):
            before = base[slot, d]
            delta = rows[slot, d] - before
            deltas[i, d] = delta
            base[slot, d] = before + delta
            rows[slot, d] = before + delta
        state[slot] = IN_FLIGHT


@numba.njit(
    types.void(ROWS_OUT, ROWS_OUT, _STATE_OUT, SLOTS, ROWS, ROWS, ROWS_OUT),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def take_shares(rows, base, state, slots, bounds, shares, deltas):
    """As `take_changes`, of deltas[i] = share * (row - base); the rest of the change is gone.

    Args:
      bounds: float32[3, width], shares: float32[2, U], of `merging.Shares`.
    """
    for i in range(slots.size):
        slot, share, more = slots[i], shares[0, i], shares[1, i]
        for d in range(np.uint64(rows.shape[1])):
            before = base[slot, d]
            part = min(max(share, bounds[0, d]), bounds[1, d]) + more * bounds[2, d]
            delta = part * (rows[slot, d] - before)
            deltas[i, d] = delta
            base[slot, d] = before + delta
            rows[slot, d] = before + delta
        state[slot] = IN_FLIGHT


@numba.njit(
    types.void(
        ROWS_OUT, ROWS_OUT, _STATE_OUT, _VERSIONS_OUT, _VERSIONS_OUT, SLOTS, VERSIONS, SLOTS, MESSAGE_ROWS, types.uint32
    ),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def land(rows, base, state, versions, stamps, slots, new_versions, positions, newer, window):
    """Ends the flight of `slots`: newer[k] becomes the base at slots[positions[k]], under what was stepped since."""
    for k in range(positions.size):
        slot = slots[positions[k]]
        for d in range(np.uint64(rows.shape[1])):
            rows[slot, d] = newer[k, d] + (rows[slot, d] - base[slot, d])
            base[slot, d] = newer[k, d]
    for i in range(slots.size):
        slot = slots[i]
        versions[slot] = new_versions[i]
        stamps[slot] = window
        state[slot] &= ~IN_FLIGHT


@numba.njit(
    types.void(
        ROWS_OUT,
        ROWS_OUT,
        _STATE,
        _VERSIONS_OUT,
        _VERSIONS_OUT,
        SLOTS,
        VERSIONS,
        VERSIONS,
        SLOTS,
        MESSAGE_ROWS,
        types.uint32,
    ),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def accept(rows, base, state, versions, stamps, slots, known, new_versions, positions, newer, window):
    """Takes a pull's answer: newer[k] becomes the base at slots[positions[k]]; what was stepped stays on top.

    A row that is in flight, or whose version is no longer the known[i] of the question, has been overtaken by another
    answer and stays as it is.
    """
    k = 0
    for i in range(slots.size):
        slot = slots[i]
        answered = k < positions.size and positions[k] == i
        if slot >= 0 and state[slot] & IN_FLIGHT == 0 and versions[slot] == known[i]:
            if answered:
                for d in range(np.uint64(rows.shape[1])):
                    rows[slot, d] = newer[k, d] + (rows[slot, d] - base[slot, d])
                    base[slot, d] = newer[k, d]
                versions[slot] = new_versions[i]
            stamps[slot] = max(stamps[slot], window)
        k += answered
