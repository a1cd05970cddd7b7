"""Compiled loops over rows: one optimizer step of one segment.

Each kernel takes (rows float32[n, width], slots int64[U], gradients float32[U, dim], start, state, learning_rate) and
then the settings of its optimizer, with their names in `settings.optimizers`. The segment's weights are
rows[slots[i], start:start + dim], and its optimizer state begins at rows[slots[i], state]. The slot -1 is skipped.
`row_kernels` explains how the loops are written and why. They compute no powers, because math libraries round powers
differently and workers would diverge.
"""

import numba
import numpy as np
from numba import types
from numba.core.typing.templates import Signature

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.table.row_kernels import ROWS, ROWS_OUT

_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)


def signature(settings: int = 0) -> Signature:
    """Returns the types of a kernel that takes this number of settings."""
    own = (types.float32,) * settings
    return types.void(ROWS_OUT, SLOTS, ROWS, types.uint64, types.uint64, types.float32, *own)


@numba.njit(signature(), nogil=True, cache=True, error_model="numpy")
def sgd(
    rows: np.ndarray,
    slots: np.ndarray,
    gradients: np.ndarray,
    start: np.uint64,
    _state: np.uint64,
    learning_rate: np.float32,
) -> None:
    """Computes w -= lr * g."""
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            for d in range(np.uint64(gradients.shape[1])):
                rows[slot, start + d] -= learning_rate * gradients[i, d]


@numba.njit(signature(1), nogil=True, cache=True, error_model="numpy")
def momentum(
    rows: np.ndarray,
    slots: np.ndarray,
    gradients: np.ndarray,
    start: np.uint64,
    state: np.uint64,
    learning_rate: np.float32,
    momentum: np.float32,
) -> None:
    """Computes u = momentum * u + g, w -= lr * u. State: u[dim].

    Equals TensorFlow's MomentumOptimizer on IndexedSlices: u does not decay in steps whose batch lacks the row.
    """
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            for d in range(np.uint64(gradients.shape[1])):
                velocity = momentum * rows[slot, state + d] + gradients[i, d]
                rows[slot, state + d] = velocity
                rows[slot, start + d] -= learning_rate * velocity


@numba.njit(signature(), nogil=True, cache=True, error_model="numpy")
def adagrad(
    rows: np.ndarray,
    slots: np.ndarray,
    gradients: np.ndarray,
    start: np.uint64,
    state: np.uint64,
    learning_rate: np.float32,
) -> None:
    """Computes acc += g * g, w -= lr * g / sqrt(acc), elementwise. State: acc[dim].

    Equals TensorFlow's v1 AdagradOptimizer, which has no epsilon.

    Source: Duchi et al., Adaptive Subgradient Methods for Online Learning and Stochastic Optimization, JMLR 12, 2011.
    """
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            for d in range(np.uint64(gradients.shape[1])):
                gradient = gradients[i, d]
                accumulator = rows[slot, state + d] + gradient * gradient
                rows[slot, state + d] = accumulator
                rows[slot, start + d] -= learning_rate * gradient / np.sqrt(accumulator)


@numba.njit(signature(1), nogil=True, cache=True, error_model="numpy")
def rowwise_adagrad(
    rows: np.ndarray,
    slots: np.ndarray,
    gradients: np.ndarray,
    start: np.uint64,
    state: np.uint64,
    learning_rate: np.float32,
    epsilon: np.float32,
) -> None:
    """Computes acc += mean(g * g), w -= lr * g / (sqrt(acc) + epsilon). State: acc[1].

    Equals FBGEMM's EXACT_ROWWISE_ADAGRAD.
    """
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            squares = _ZERO
            for d in range(np.uint64(gradients.shape[1])):
                squares += gradients[i, d] * gradients[i, d]
            accumulator = rows[slot, state] + squares / np.float32(gradients.shape[1])
            rows[slot, state] = accumulator
            rate = learning_rate / (np.sqrt(accumulator) + epsilon)
            for d in range(np.uint64(gradients.shape[1])):
                rows[slot, start + d] -= rate * gradients[i, d]


@numba.njit(signature(4), nogil=True, cache=True, error_model="numpy")
def adam(
    rows: np.ndarray,
    slots: np.ndarray,
    gradients: np.ndarray,
    start: np.uint64,
    state: np.uint64,
    learning_rate: np.float32,
    beta1: np.float32,
    beta2: np.float32,
    epsilon: np.float32,
    weight_decay: np.float32,
) -> None:
    """Adam with the row's own bias correction, and decoupled weight decay. State: m[dim], v[dim], c1, c2.

        m = beta1 * m + (1 - beta1) * g,      v = beta2 * v + (1 - beta2) * g * g
        c1 = beta1 * c1 + (1 - beta1),        c2 = beta2 * c2 + (1 - beta2)
        w = w - lr * weight_decay * w - lr * (m / c1) / (sqrt(v / c2) + epsilon)

    After t steps, c1 = 1 - beta1^t and c2 = 1 - beta2^t, the usual correction. The state holds c1 and c2 instead of t,
    because they remain the correct weights of m and v when the rows of several workers are merged; a step count would
    not. The step is lazy: m, v and w do not change for a row that is not in the batch.

    Source: Kingma and Ba, ICLR 2015, algorithm 1; Loshchilov and Hutter, ICLR 2019, algorithm 2.
    """
    dim = np.uint64(gradients.shape[1])
    kept = _ONE - learning_rate * weight_decay
    second, corrections = state + dim, state + dim + dim
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            correction1 = beta1 * rows[slot, corrections] + (_ONE - beta1)
            correction2 = beta2 * rows[slot, corrections + np.uint64(1)] + (_ONE - beta2)
            rows[slot, corrections] = correction1
            rows[slot, corrections + np.uint64(1)] = correction2
            for d in range(dim):
                gradient = gradients[i, d]
                mean = beta1 * rows[slot, state + d] + (_ONE - beta1) * gradient
                # Adding the changes of other workers may have rounded v below zero.
                square = beta2 * max(rows[slot, second + d], _ZERO) + (_ONE - beta2) * gradient * gradient
                rows[slot, state + d] = mean
                rows[slot, second + d] = square
                change = (mean / correction1) / (np.sqrt(square / correction2) + epsilon)
                rows[slot, start + d] = kept * rows[slot, start + d] - learning_rate * change


@numba.njit(signature(2), nogil=True, cache=True, error_model="numpy")
def ftrl(
    rows: np.ndarray,
    slots: np.ndarray,
    gradients: np.ndarray,
    start: np.uint64,
    state: np.uint64,
    learning_rate: np.float32,
    l1: np.float32,
    l2: np.float32,
) -> None:
    """FTRL-proximal, elementwise. State: q[dim], n[dim].

        n' = n + g * g,    z = q + g - w * sqrt(n') / lr
        w' = 0 if |z| <= l1, else (sign(z) * l1 - z) / (sqrt(n') / lr + 2 * l2),    q' = z + w' * sqrt(n') / lr

    The paper keeps z, with z' = z + g - (sqrt(n') - sqrt(n)) / lr * w. The steps are the same, because z' is
    q' - w' * sqrt(n') / lr. But the changes of z in several workers cannot be added, because the square roots of n do
    not add up. So the state holds q, the part of z that the penalties hold back. If w is not 0, q is -sign(w) * l1 - 2
    * l2 * w, and is computed from w.

    Equals TensorFlow's v1 FtrlOptimizer if the weights start at 0. FtrlOptimizer ignores other initial weights; this
    kernel does not. A weight that never had a gradient does not change. At a learning rate of 0, no weight changes.

    Source: McMahan et al., Ad Click Prediction: a View from the Trenches, KDD 2013, algorithm 1.
    """
    dim = np.uint64(gradients.shape[1])
    squares = state + dim
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            for d in range(dim):
                gradient, weight = gradients[i, d], rows[slot, start + d]
                accumulator = rows[slot, squares + d] + gradient * gradient
                if accumulator > _ZERO and learning_rate > _ZERO:  # Both are divisors below.
                    root = np.sqrt(accumulator) / learning_rate
                    held = rows[slot, state + d] if weight == _ZERO else -np.sign(weight) * l1 - _TWO * l2 * weight
                    z = held + gradient - weight * root
                    weight = (np.sign(z) * l1 - z) / (root + _TWO * l2) if abs(z) > l1 else _ZERO
                    rows[slot, squares + d] = accumulator
                    rows[slot, state + d] = z + weight * root
                    rows[slot, start + d] = weight
