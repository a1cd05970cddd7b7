"""Compiled loops that apply the optimizer steps that rows missed, so that every row is updated at every step.

A lazy optimizer updates only the rows of a batch. The dense optimizers (`dense_sgd`, `dense_adagrad`, `dense_adam`)
train a table like a dense variable: each step updates each row with the gradient of L2 over the whole table, l2 * w,
plus the gradient of the loss if the batch contains the row. The last float of each segment's state counts the
steps that the segment has taken, see `_clock`. `StepHistory` describes when missed steps are applied.

Each kernel takes (rows float32[n, width], slots int64[U], dims int64[S], first, rates float32[n], steps, taken, l2) and
then the settings of its optimizer. `dims` are the widths of the segments, and the slot -1 is skipped. The kernel
applies the steps before `steps` that a row missed. rates[t - first] is the learning rate of step t, and steps before
`first` use the rate of step `first`. The kernel then raises the row's number of steps to `taken` if it is smaller. All
segments of a row have taken the same steps. Each step updates all segments before the next step begins, so that the
processor overlaps their square roots and divisions.
"""

import numpy as np
from numba import types
from numba.core.typing.templates import Signature

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.index.key_kernels import kernel
from ctr_trainer.embedding.table.row_kernels import ROWS_OUT

# The most steps that are applied one by one; each takes about 16 ns for a row of 17 weights. A row that missed more has
# long been at 0, within about a learning rate, and stays where these steps have brought it.
MOST_STEPS = 4096
# The remaining fraction of m at which it changes a weight by no more than rounding does.
_GONE = np.float32(1e-9)
_FLOATS = types.Array(types.float32, 1, "C", readonly=True)
_INT64S = types.Array(types.int64, 1, "C", readonly=True)
_ZERO, _ONE = np.float32(0), np.float32(1)
_BITS_OF_ONE, _MOST_IN_FLOAT = np.int32(0x3F800000), 1 << 24
# Floats of a segment's state after the per-weight floats: c1, c2 and steps for Adam, only steps for the others.
_ADAMS, _OTHERS = np.uint64(3), np.uint64(1)


def _signature(settings: int = 0) -> Signature:
    own = (types.float32,) * (1 + settings)
    return types.void(ROWS_OUT, SLOTS, _INT64S, types.int64, _FLOATS, types.int64, types.int64, *own)


@kernel(types.float32(types.float32, types.int64))
def _power(base: np.float32, exponent: int) -> np.float32:
    """Returns base ** exponent, computed with multiplications only, so that all machines get the same result."""
    result = _ONE
    while exponent > 0:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result


@kernel(types.int64(types.float32))
def _steps(clock: np.float32) -> int:
    """Returns the number of steps that a row has taken, given its `_clock`."""
    bits = np.float32(clock).view(np.int32)
    return int(bits) if bits < _BITS_OF_ONE else int(clock)


@kernel(types.float32(types.int64))
def _clock(steps: int) -> np.float32:
    """Returns the float of a row that stands for a number of steps: the number, or beyond 2**24 that with its bits."""
    return np.float32(steps) if steps <= _MOST_IN_FLOAT else np.int32(steps).view(np.float32)


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
            for step in range(_steps(rows[slot, weights]), steps):
                factor *= _ONE - rates[max(step - first, 0)] * l2
            for d in range(weights):
                rows[slot, d] *= factor
            for part in range(np.uint64(dims.size)):
                rows[slot, weights + part] = _clock(max(_steps(rows[slot, weights + part]), taken))


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
    """Applies the missed steps of `optimizer_kernels.adagrad` with g = l2 * w, at most `MOST_STEPS`."""
    weights = np.uint64(dims.sum())
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            step = _steps(rows[slot, weights + np.uint64(dims[0])])
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
                rows[slot, clock] = _clock(max(_steps(rows[slot, clock]), taken))
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
    """Applies the missed steps of `optimizer_kernels.adam` with g = l2 * w, at most `MOST_STEPS`.

    Without L2 and weight decay, the weights stop moving when m has decayed, after about 200 steps with beta1 = 0.9.
    From then on, m, v and the corrections decay in closed form.
    """
    weights, one, two = np.uint64(dims.sum()), np.uint64(1), np.uint64(2)
    comes_to_rest = l2 == _ZERO and weight_decay == _ZERO
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            corrections = weights + two * np.uint64(dims[0])
            correction1, correction2 = rows[slot, corrections], rows[slot, corrections + one]
            step, left = _steps(rows[slot, corrections + two]), _ONE
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
                of_mean, of_square = _ONE / correction1, _ONE / correction2  # One division per weight, not three.
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
                rows[slot, corrections + two] = _clock(max(_steps(rows[slot, corrections + two]), taken))
                state = corrections + _ADAMS
