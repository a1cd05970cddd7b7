"""Compiled loops over copies of rows and the state of each copy.

A row and its base are read and written in one pass, because their memory is cold and each pass costs as much as the
arithmetic of several passes.
"""

import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import AHEAD, KEYS, kernel, prefetch_row
from ctr_trainer.embedding.store.versions import POSITIONS_OUT, VERSIONS, VERSIONS_OUT
from ctr_trainer.embedding.table.row_kernels import MESSAGE_ROWS, ROWS, ROWS_OUT

# The bits of a copy's state.
STEPPED = np.uint8(1)
IN_FLIGHT = np.uint8(2)
_EIGHT_STEPPED = np.uint64(0x0101010101010101)

_STATE = types.Array(types.uint8, 1, "C", readonly=True)
_STATE_OUT = types.Array(types.uint8, 1, "C")
_COPIES = ROWS_OUT, ROWS_OUT, SLOTS  # The rows and their bases, and the places of the slots in both.
_CHECKS = VERSIONS_OUT, VERSIONS_OUT  # The versions of the rows and their stamps.


@kernel(types.int64(KEYS, SLOTS, _STATE, VERSIONS, types.uint32, POSITIONS_OUT))
def find_stale(
    keys: np.ndarray, slots: np.ndarray, state: np.ndarray, stamps: np.ndarray, since: int, positions: np.ndarray
) -> int:
    """Finds the keys without a slot, and the keys whose row has state 0 and was last checked before `since`.

    Returns the number of positions found.
    """
    count = 0
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0 and since == 0:  # No row is that old, so its stamp is not read.
            continue
        if slot >= 0:
            stale = state[slot] == 0 and stamps[slot] < since
        else:
            stale = keys[i] != 0
        if stale:
            positions[count] = i
            count += 1
    return count


@kernel(types.void(_STATE_OUT, SLOTS))
def mark_stepped(state: np.ndarray, slots: np.ndarray) -> None:
    """Computes state[slots[i]] |= STEPPED; the slot -1 is skipped."""
    for i in range(slots.size):
        if slots[i] >= 0:
            state[slots[i]] |= STEPPED


@kernel(types.int64(_STATE))
def count_stepped(state: np.ndarray) -> int:
    """Returns the number of STEPPED rows."""
    count = 0
    for slot in range(state.size):
        count += state[slot] & STEPPED
    return count


@kernel(types.int64(_STATE, POSITIONS_OUT))
def find_stepped(state: np.ndarray, slots: np.ndarray) -> int:
    """Fills `slots` with the slots of STEPPED rows, ascending, as far as it has room. Returns their number."""
    words, count = state[: state.size // 8 * 8].view(np.uint64), 0
    for word in range(words.size):
        if words[word] & _EIGHT_STEPPED == 0:
            continue
        for slot in range(8 * word, 8 * word + 8):  # Without a branch, which would be mispredicted.
            if count == slots.size:
                return count
            slots[count] = slot
            count += np.int64(state[slot] & STEPPED)  # type: ignore[assignment]  # Numba keeps it an int64.
    for slot in range(8 * words.size, state.size):
        if count < slots.size and state[slot] & STEPPED:
            slots[count] = slot
            count += 1
    return count


@kernel(types.void(*_COPIES, _STATE_OUT, SLOTS, ROWS, ROWS, ROWS_OUT))
def take_shares(
    rows: np.ndarray,
    base: np.ndarray,
    places: np.ndarray,
    state: np.ndarray,
    slots: np.ndarray,
    bounds: np.ndarray,
    shares: np.ndarray,
    deltas: np.ndarray,
) -> None:
    """Sets deltas[i] = share * (row - base) at slots[i], and drops the rest of each change.

    Row and base become base + deltas[i], as the service computes it. The rows are then in flight.
    `bounds`, float32[3, width], belong to `merging.Shares`, and `shares`, float32[2, U], are the result of `Shares.of`.
    """
    for i in range(slots.size):
        place, share, more = places[i], shares[0, i], shares[1, i]
        for d in range(np.uint64(rows.shape[1])):
            before = base[place, d]
            part = min(max(share, bounds[0, d]), bounds[1, d]) + more * bounds[2, d]
            delta = part * (rows[place, d] - before)
            deltas[i, d] = delta
            base[place, d] = before + delta
            rows[place, d] = before + delta
        state[slots[i]] = IN_FLIGHT


@kernel(types.void(ROWS, _STATE_OUT, VERSIONS_OUT, SLOTS, types.uint32, ROWS_OUT))
def take_rows(
    rows: np.ndarray, state: np.ndarray, stamps: np.ndarray, slots: np.ndarray, window: int, taken: np.ndarray
) -> None:
    """Sets taken[i] = the row at slots[i], which then has no change to send, and stamps[slots[i]] = window."""
    for i in range(slots.size):
        if i + AHEAD < slots.size:
            prefetch_row(rows, slots[i + AHEAD])
        slot = slots[i]
        for d in range(np.uint64(rows.shape[1])):
            taken[i, d] = rows[slot, d]
        state[slot], stamps[slot] = 0, window


@kernel(types.void(*_COPIES, _STATE_OUT, *_CHECKS, SLOTS, VERSIONS, SLOTS, MESSAGE_ROWS, types.uint32))
def land(
    rows: np.ndarray,
    base: np.ndarray,
    places: np.ndarray,
    state: np.ndarray,
    versions: np.ndarray,
    stamps: np.ndarray,
    slots: np.ndarray,
    new_versions: np.ndarray,
    positions: np.ndarray,
    newer: np.ndarray,
    window: int,
) -> None:
    """Ends the flight of `slots`: newer[k] becomes the base at slots[positions[k]], and later steps are added to it."""
    for k in range(positions.size):
        place = places[positions[k]]
        for d in range(np.uint64(rows.shape[1])):
            rows[place, d] = newer[k, d] + (rows[place, d] - base[place, d])
            base[place, d] = newer[k, d]
    for i in range(slots.size):
        slot = slots[i]
        versions[slot] = new_versions[i]
        stamps[slot] = max(stamps[slot], window)
        state[slot] &= ~IN_FLIGHT
