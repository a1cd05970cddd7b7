"""Compiled loops that catch rows up with the optimizer steps that they missed, so that every row moves at every step.

A lazy optimizer steps the rows of a batch only. The dense optimizers (`dense_sgd`, `dense_adagrad`, `dense_adam`) train
a table as an optimizer of dense variables does: at each step each row moves by the gradient of L2 over the whole table,
l2 * w, plus the gradient of the loss if the batch has the row. Each segment of a row keeps the number of the steps that
it took as the last float of its state. `StepHistory` says when rows are caught up.

Each kernel takes (rows float32[n, width], slots int64[U], dims int64[S], first, rates float32[n], steps, taken, l2) and
then the settings of its optimizer; `dims` are the widths of the segments, and the slot -1 is skipped. The kernel makes
the steps before `steps` that a row missed; rates[t - first] is the learning rate of step t, and earlier steps than
`first` have the rate of `first`. Then it sets the number of the row's steps to `taken` unless it is larger. All
segments of a row have made the same steps. They move in turn within a step, so that a processor works at both at once:
each waits for its own root and division.
"""

import numpy as np
from numba import types
from numba.core.typing.templates import Signature

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import kernel
from ctr_trainer.embedding.table.row_kernels import ROWS_OUT

# The most steps that are made up for one by one; for a row of 17 weights each takes some 16 ns. A row that missed more
# was long at 0, give or take a learning rate, and stays where these steps have brought it.
MOST_STEPS = 4096
# What is left of m when it no longer moves a weight by more than rounding does.
_GONE = np.float32(1e-9)
_FLOATS = types.Array(types.float32, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_ZERO, _ONE = np.float32(0), np.float32(1)
# Floats of a segment's state: Adam's c1, c2 and steps behind m and v, and the steps of the others.
_ADAMS, _OTHERS = np.uint64(3), np.uint64(1)


def _signature(settings: int = 0) -> Signature:
    own = (types.float32,) * (1 + settings)
    return types.void(ROWS_OUT, SLOTS, _INT64S, types.int64, _FLOATS, types.int64, types.int64, *own)


@kernel(types.float32(types.float32, types.int64))
def _power(base: np.float32, exponent: int) -> np.float32:
    """Returns base ** exponent by products alone, so that it is the same on every machine."""
    result = _ONE
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@kernel(_signature())
def sgd(
    rows: np.ndarray,
    slots: np.ndarray,
    dims: np.ndarray,
    first: int,
    rates: np.ndarray,
    steps: int,
    taken: int,
    l2: np.float32,
) -> None:
    """Computes w *= prod_t (1 - lr_t * l2) over all missed steps t."""
    weights = np.uint64(dims.sum())
    for i in range(slots.size):
        slot, factor = slots[i], _ONE
        if slot >= 0:
            for step in range(int(rows[slot, weights]), steps):
                factor *= _ONE - rates[max(step - first, 0)] * l2
            for d in range(weights):
                rows[slot, d] *= factor
            for part in range(np.uint64(dims.size)):
                rows[slot, weights + part] = max(rows[slot, weights + part], np.float32(taken))


@kernel(_signature())
def adagrad(
    rows: np.ndarray,
    slots: np.ndarray,
    dims: np.ndarray,
    first: int,
    rates: np.ndarray,
    steps: int,
    taken: int,
    l2: np.float32,
) -> None:
    """Makes the missed steps of `optimizer_kernels.adagrad` with g = l2 * w, at most `MOST_STEPS`."""
    weights = np.uint64(dims.sum())
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            step = int(rows[slot, weights + np.uint64(dims[0])])
            stop = min(steps, step + MOST_STEPS) if l2 > _ZERO else step
            while step < stop:
                rate = rates[max(step - first, 0)]
                start, state = np.uint64(0), weights
                for part in range(dims.size):
                    dim = np.uint64(dims[part])
                    for d in range(dim):
                        gradient = l2 * rows[slot, start + d]
                        accumulator = rows[slot, state + d] + gradient * gradient
                        rows[slot, state + d] = accumulator
                        rows[slot, start + d] -= rate * gradient / np.sqrt(accumulator)
                    start, state = start + dim, state + dim + _OTHERS
                step += 1
            state = weights
            for part in range(dims.size):
                clock = state + np.uint64(dims[part])
                rows[slot, clock] = max(rows[slot, clock], np.float32(taken))
                state = clock + _OTHERS


@kernel(_signature(4))
def adam(
    rows: np.ndarray,
    slots: np.ndarray,
    dims: np.ndarray,
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
    weights, one, two = np.uint64(dims.sum()), np.uint64(1), np.uint64(2)
    comes_to_rest = l2 == _ZERO and weight_decay == _ZERO
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            corrections = weights + two * np.uint64(dims[0])
            correction1, correction2 = rows[slot, corrections], rows[slot, corrections + one]
            step, left = int(rows[slot, corrections + two]), _ONE
            if comes_to_rest:
                left, state = _ZERO, weights
                for part in range(dims.size):
                    dim = np.uint64(dims[part])
                    for d in range(dim):
                        if rows[slot, state + d] != _ZERO:
                            left = _ONE
                    state += two * dim + _ADAMS
            stop = min(steps, step + MOST_STEPS)
            while step < stop and left > _GONE:
                rate = rates[max(step - first, 0)]
                kept = _ONE - rate * weight_decay
                correction1 = beta1 * correction1 + (_ONE - beta1)
                correction2 = beta2 * correction2 + (_ONE - beta2)
                of_mean, of_square = _ONE / correction1, _ONE / correction2  # One division a weight, in place of three.
                start, state = np.uint64(0), weights
                for part in range(dims.size):
                    dim = np.uint64(dims[part])
                    second = state + dim
                    for d in range(dim):
                        gradient = l2 * rows[slot, start + d]
                        mean = beta1 * rows[slot, state + d] + (_ONE - beta1) * gradient
                        square = beta2 * rows[slot, second + d] + (_ONE - beta2) * gradient * gradient
                        rows[slot, state + d] = mean
                        rows[slot, second + d] = square
                        change = mean * of_mean / (np.sqrt(square * of_square) + epsilon)
                        rows[slot, start + d] = kept * rows[slot, start + d] - rate * change
                    start, state = start + dim, second + dim + _ADAMS
                if comes_to_rest:
                    left *= beta1
                step += 1
            decay1, decay2 = _power(beta1, max(steps - step, 0)), _power(beta2, max(steps - step, 0))
            correction1 = _ONE - decay1 * (_ONE - correction1)
            correction2 = _ONE - decay2 * (_ONE - correction2)
            state = weights
            for part in range(dims.size):
                dim = np.uint64(dims[part])
                if comes_to_rest and step < steps:
                    for d in range(dim):
                        rows[slot, state + d] *= decay1
                        rows[slot, state + dim + d] *= decay2
                corrections = state + two * dim
                rows[slot, corrections], rows[slot, corrections + one] = correction1, correction2
                rows[slot, corrections + two] = max(rows[slot, corrections + two], np.float32(taken))
                state = corrections + _ADAMS
