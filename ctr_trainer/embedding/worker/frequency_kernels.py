"""Compiled loops over how often a worker steps each row."""

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.store.versions import POSITIONS_OUT, VERSIONS_OUT

_MOST_STEPS = 2**16 - 1
_STEPS_OUT = types.Array(types.uint16, 1, "C")
_FLOATS_OUT = types.Array(types.float32, 1, "C")


@numba.njit(types.void(_STEPS_OUT, SLOTS), nogil=True, cache=True)
def count_step(steps: np.ndarray, slots: np.ndarray) -> None:
    """steps[slots[i]] += 1, up to the largest uint16; the slot -1 is skipped."""
    for i in range(slots.size):
        if slots[i] >= 0:
            steps[slots[i]] = min(steps[slots[i]] + 1, _MOST_STEPS)


@numba.njit(
    types.void(
        _STEPS_OUT,
        _FLOATS_OUT,
        VERSIONS_OUT,
        SLOTS,
        types.int64,
        types.int64,
        types.int64,
        _FLOATS_OUT,
        POSITIONS_OUT,
    ),
    nogil=True,
    cache=True,
    error_model="numpy",
)
def take_rates(
    steps: np.ndarray,
    met: np.ndarray,
    since: np.ndarray,
    slots: np.ndarray,
    now: int,
    began: int,
    most: int,
    rates: np.ndarray,
    taken: np.ndarray,
) -> None:
    """Ends the window of the rows at `slots`, see `RowFrequency`.

    Args:
      steps: number of steps of each slot's row in this window.
      met: number of steps of each slot's row in the earlier windows.
      since: for each slot, the worker's step at which the first of these windows began.
      now: the worker's steps so far.
      began: the worker's step at which this window began.
      most: when T passes this many steps, n and T are halved.
      rates: out: p of each row.
      taken: out: each row's steps in this window.
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
