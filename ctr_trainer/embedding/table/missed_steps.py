"""Compiled loops that catch rows up with the optimizer steps that they missed, so that every row moves at every step.

A lazy optimizer steps the rows of a batch only. The dense optimizers (`dense_sgd`, `dense_adagrad`, `dense_adam`) train
a table as an optimizer of dense variables does: at each step each row moves by the gradient of L2 over the whole table,
l2 * w, plus the gradient of the loss if the batch has the row. Each segment of a row keeps the number of the steps that
it took as the last float of its state. `step_history` says when rows are caught up.

Each kernel takes (rows float32[n, width], slots int64[U], start, dim, state, first, rates float32[n], steps, taken, l2)
and then the settings of its optimizer. The segment's weights are rows[slots[i], start:start + dim], its state begins at
rows[slots[i], state], and the slot -1 is skipped. The kernel makes the steps before `steps` that the segment missed;
rates[t - first] is the learning rate of step t, and earlier steps than `first` have the rate of `first`. Then it sets
the number of the segment's steps to `taken` unless it is larger.
"""

import numba
import numpy as np
from numba import types
from numba.core.typing.templates import Signature

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.table.row_kernels import ROWS_OUT

# The most steps that are made up for one by one; for a row of 17 weights each takes some 35 ns. A row that missed more
# was long at 0, give or take a learning rate, and stays where these steps have brought it.
MOST_STEPS = 4096
# What is left of m when it no longer moves a weight by more than rounding does.
_GONE = np.float32(1e-9)
_FLOATS = types.Array(types.float32, 1, "C", readonly=True)
_ZERO, _ONE = np.float32(0), np.float32(1)


def _signature(settings: int = 0) -> Signature:
    places, steps, own = (types.uint64,) * 3, (types.int64,) * 2, (types.float32,) * (1 + settings)
    return types.void(ROWS_OUT, SLOTS, *places, types.int64, _FLOATS, *steps, *own)


@numba.njit(types.float32(types.float32, types.int64), nogil=True, cache=True)
def _power(base: np.float32, exponent: int) -> np.float32:
    """Returns base ** exponent by products alone, so that it is the same on every machine."""
    result = _ONE
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@numba.njit(_signature(), nogil=True, cache=True, error_model="numpy")
def sgd(
    rows: np.ndarray,
    slots: np.ndarray,
    start: np.uint64,
    dim: np.uint64,
    state: np.uint64,
    first: int,
    rates: np.ndarray,
    steps: int,
    taken: int,
    l2: np.float32,
) -> None:
    """Computes w *= prod_t (1 - lr_t * l2) over all missed steps t."""
    for i in range(slots.size):
        slot, factor = slots[i], _ONE
        if slot >= 0:
            for step in range(int(rows[slot, state]), steps):
                factor *= _ONE - rates[max(step - first, 0)] * l2
            for d in range(dim):
                rows[slot, start + d] *= factor
            rows[slot, state] = max(rows[slot, state], np.float32(taken))


@numba.njit(_signature(), nogil=True, cache=True, error_model="numpy")
def adagrad(
    rows: np.ndarray,
    slots: np.ndarray,
    start: np.uint64,
    dim: np.uint64,
    state: np.uint64,
    first: int,
    rates: np.ndarray,
    steps: int,
    taken: int,
    l2: np.float32,
) -> None:
    """Makes the missed steps of `optimizer_kernels.adagrad` with g = l2 * w, at most `MOST_STEPS`."""
    clock = state + dim
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            step = int(rows[slot, clock])
            stop = min(steps, step + MOST_STEPS) if l2 > _ZERO else step
            while step < stop:
                rate = rates[max(step - first, 0)]
                for d in range(dim):
                    gradient = l2 * rows[slot, start + d]
                    accumulator = rows[slot, state + d] + gradient * gradient
                    rows[slot, state + d] = accumulator
                    rows[slot, start + d] -= rate * gradient / np.sqrt(accumulator)
                step += 1
            rows[slot, clock] = max(rows[slot, clock], np.float32(taken))


@numba.njit(_signature(4), nogil=True, cache=True, error_model="numpy")
def adam(
    rows: np.ndarray,
    slots: np.ndarray,
    start: np.uint64,
    dim: np.uint64,
    state: np.uint64,
    first: int,
    rates: np.ndarray,
    steps: int,
    taken: int,
    l2: np.float32,
    beta1: np.float32,
    beta2: np.float32,
    epsilon: np.float32,
    weight_decay: np.float32,
) -> None:
    """Makes the missed steps of `optimizer_kernels.adam` with g = l2 * w, at most `MOST_STEPS`.

    Without L2 the weights come to rest when m is gone, after some 200 steps with a beta1 of 0.9. From there on m, v and
    the corrections decay in closed form.
    """
    second, corrections = state + dim, state + dim + dim
    clock = corrections + np.uint64(2)
    comes_to_rest = l2 == _ZERO and weight_decay == _ZERO
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            step, left = int(rows[slot, clock]), _ONE
            if comes_to_rest:
                left = _ZERO
                for d in range(dim):
                    if rows[slot, state + d] != _ZERO:
                        left = _ONE
            correction1, correction2 = rows[slot, corrections], rows[slot, corrections + np.uint64(1)]
            stop = min(steps, step + MOST_STEPS)
            while step < stop and left > _GONE:
                rate = rates[max(step - first, 0)]
                kept = _ONE - rate * weight_decay
                correction1 = beta1 * correction1 + (_ONE - beta1)
                correction2 = beta2 * correction2 + (_ONE - beta2)
                for d in range(dim):
                    gradient = l2 * rows[slot, start + d]
                    mean = beta1 * rows[slot, state + d] + (_ONE - beta1) * gradient
                    square = beta2 * rows[slot, second + d] + (_ONE - beta2) * gradient * gradient
                    rows[slot, state + d] = mean
                    rows[slot, second + d] = square
                    change = (mean / correction1) / (np.sqrt(square / correction2) + epsilon)
                    rows[slot, start + d] = kept * rows[slot, start + d] - rate * change
                if comes_to_rest:
                    left *= beta1
                step += 1
            if step < steps:
                decay1, decay2 = _power(beta1, steps - step), _power(beta2, steps - step)
                correction1 = _ONE - decay1 * (_ONE - correction1)
                correction2 = _ONE - decay2 * (_ONE - correction2)
                if comes_to_rest:
                    for d in range(dim):
                        rows[slot, state + d] *= decay1
                        rows[slot, second + d] *= decay2
            rows[slot, corrections], rows[slot, corrections + np.uint64(1)] = correction1, correction2
            rows[slot, clock] = max(rows[slot, clock], np.float32(taken))
