"""The optimizers of rows by name: the state that each keeps next to a row's weights, and its kernel.

A kernel is a compiled loop that makes one step of one segment of the rows. It takes (rows float32[n, width], slots
int64[U], gradients float32[U, dim], start, state, learning_rate) and then the settings of its optimizer, by their names
in `settings.row_optimizer`. The segment's weights are rows[slots[i], start:start + dim], and its optimizer state begins
at rows[slots[i], state]. The slot -1 is skipped. `row_kernels` says how the loops are written and why. They compute no
powers: mathematics libraries differ in these, so workers would differ too.
"""

import dataclasses
from collections.abc import Callable

import numba
import numpy as np
from numba import types

from ctr_trainer.embedding.index.index_kernels import SLOTS
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.row_kernels import ROWS, ROWS_OUT
from ctr_trainer.settings.optimizers import with_plugins

_ZERO, _ONE, _TWO = np.float32(0), np.float32(1), np.float32(2)
# Rows that are prefetched together, before their segments are stepped one after the other: few enough to stay in the
# core's second-level cache. An Adagrad step of 8,600 rows of 17 weights, in a table of 195,000 rows, takes 0.18 ms, and
# without prefetching 0.29 ms.
_STEP_BLOCK = 2048


def signature(settings=0):
    """-> the types of a kernel that takes so many settings."""
    own = (types.float32,) * settings
    return types.void(ROWS_OUT, SLOTS, ROWS, types.uint64, types.uint64, types.float32, *own)


@numba.njit(signature(), nogil=True, cache=True, error_model="numpy")
def sgd(rows, slots, gradients, start, _state, learning_rate):
    """w -= lr * g"""
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            for d in range(np.uint64(gradients.shape[1])):
                rows[slot, start + d] -= learning_rate * gradients[i, d]


@numba.njit(signature(1), nogil=True, cache=True, error_model="numpy")
def momentum(rows, slots, gradients, start, state, learning_rate, momentum):
    """u = momentum * u + g, w -= lr * u. State: u[dim].

    Equals TensorFlow's MomentumOptimizer on IndexedSlices: between two steps of a row its u does not decay.
    """
    for i in range(slots.size):
        slot = slots[i]
        if slot >= 0:
            for d in range(np.uint64(gradients.shape[1])):
                velocity = momentum * rows[slot, state + d] + gradients[i, d]
                rows[slot, state + d] = velocity
                rows[slot, start + d] -= learning_rate * velocity


@numba.njit(signature(), nogil=True, cache=True, error_model="numpy")
def adagrad(rows, slots, gradients, start, state, learning_rate):
    """acc += g * g, w -= lr * g / sqrt(acc), elementwise. State: acc[dim].

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
def rowwise_adagrad(rows, slots, gradients, start, state, learning_rate, epsilon):
    """acc += mean(g * g), w -= lr * g / (sqrt(acc) + epsilon). State: acc[1].

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
def adam(rows, slots, gradients, start, state, learning_rate, beta1, beta2, epsilon, weight_decay):
    """Adam with the row's own bias correction, and decoupled weight decay. State: m[dim], v[dim], c1, c2.

        m = beta1 * m + (1 - beta1) * g,      v = beta2 * v + (1 - beta2) * g * g
        c1 = beta1 * c1 + (1 - beta1),        c2 = beta2 * c2 + (1 - beta2)
        w = w - lr * weight_decay * w - lr * (m / c1) / (sqrt(v / c2) + epsilon)

    After t steps, c1 = 1 - beta1^t and c2 = 1 - beta2^t, the usual correction. c1 and c2 are kept in place of t: when
    the rows of several workers are merged, c1 and c2 stay the weights of m and v, as no count of steps would.
    The step is lazy: m, v and w of a row that a batch lacks stay as they are.

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
                # Rounding may have left v below zero when changes of other workers were added.
                square = beta2 * max(rows[slot, second + d], _ZERO) + (_ONE - beta2) * gradient * gradient
                rows[slot, state + d] = mean
                rows[slot, second + d] = square
                change = (mean / correction1) / (np.sqrt(square / correction2) + epsilon)
                rows[slot, start + d] = kept * rows[slot, start + d] - learning_rate * change


@numba.njit(signature(2), nogil=True, cache=True, error_model="numpy")
def ftrl(rows, slots, gradients, start, state, learning_rate, l1, l2):
    """FTRL-proximal, elementwise. State: q[dim], n[dim].

        n' = n + g * g,    z = q + g - w * sqrt(n') / lr
        w' = 0 if |z| <= l1, else (sign(z) * l1 - z) / (sqrt(n') / lr + 2 * l2),    q' = z + w' * sqrt(n') / lr

    The paper keeps z, with z' = z + g - (sqrt(n') - sqrt(n)) / lr * w. The steps are the same, as z' is
    q' - w' * sqrt(n') / lr. But z is not a sum that workers could add to, since the roots of n do not add up. So q is
    kept, the part of z that the penalties hold. If w is not 0, q is -sign(w) * l1 - 2 * l2 * w, and is computed from w.

    Equals TensorFlow's v1 FtrlOptimizer if the weights start at 0. That one forgets other initial weights; here they
    count. A weight that never had a gradient stays as it is, and at a learning rate of 0 all weights do.

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


@dataclasses.dataclass(frozen=True)
class State:
    """A part of an optimizer's state.

    Attributes:
      name: its name in the kernel's docstring.
      each_weight: whether it has one float per weight of a segment; else it has one float per segment.
      sums: whether it is a sum over all steps; then the changes of several workers add up. Else it is an average over
        the last steps, and the values of several workers are averaged.
      accumulates: whether it starts at the optimizer's `initial_accumulator`; else it starts at 0.
      kept: of a slow average, the name of the optimizer's setting that says which fraction of it a step keeps; "" for
        all other states. An average is slow if it is of more steps than lie between two syncs, as Adam's v is of about
        1 / (1 - beta2) = 1000: the steps of all workers then count in it, see `merging`.
    """

    name: str
    each_weight: bool = True
    sums: bool = False
    accumulates: bool = False
    kept: str = ""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer of rows: its kernel and its state; `settings.row_optimizer` has its settings.

    Attributes:
      step: the kernel, see `sgd`.
      states: the parts of its state, in the order in which they lie in a row.
      settings: the names of the settings that the kernel takes, in its order.
      is_scale_free: whether its steps stay the same if all gradients are multiplied by one factor, except for what
        epsilon and the initial accumulator do.
    """

    step: Callable
    states: tuple[State, ...] = ()
    settings: tuple[str, ...] = ()
    is_scale_free: bool = True

    def width(self, dim):
        """-> floats of state of a segment of `dim` weights."""
        return sum(dim if state.each_weight else 1 for state in self.states)

    def by_float(self, dims):
        """-> list with one State per float of a row's state: the part that holds the float, for segments `dims`."""
        return [state for dim in dims for state in self.states for _ in range(dim if state.each_weight else 1)]

    def initial_state(self, dims, optimizer):
        """-> float32[n], the state of a new row with the segments `dims`, trained by a `RowOptimizer` `optimizer`."""
        states = self.by_float(dims)
        return np.array([optimizer.initial_accumulator if state.accumulates else 0.0 for state in states], np.float32)

    def step_rows(self, rows, slots, gradients, learning_rate, settings):
        """Makes one step of each segment of the rows at `slots`.

        Args:
          rows: float32[n, width], changed in place.
          slots: int64[U], distinct; -1 is skipped.
          gradients: list of float32[U, dim], one per segment.
          learning_rate: a float.
          settings: what `kernel_settings` returned.
        """
        weights = sum(gradient.shape[1] for gradient in gradients)
        for first in range(0, len(slots), _STEP_BLOCK):
            block = slice(first, first + _STEP_BLOCK)
            row_kernels.fetch(rows, slots[block])
            start, state = 0, weights
            for gradient in gradients:
                self.step(rows, slots[block], gradient[block], start, state, learning_rate, *settings)
                start += gradient.shape[1]
                state += self.width(gradient.shape[1])

    def kernel_settings(self, optimizer):
        """-> tuple of float32: the settings of a `RowOptimizer` that the kernel takes, in its order."""
        return tuple(np.float32(getattr(optimizer, name)) for name in self.settings)


_ADAM = Optimizer(
    adam,
    (
        State("m"),
        State("v", kept="beta2"),
        State("c1", each_weight=False),
        State("c2", each_weight=False, kept="beta2"),
    ),
    ("beta1", "beta2", "epsilon", "weight_decay"),
)
_OWN = {
    "sgd": Optimizer(sgd, is_scale_free=False),
    "momentum": Optimizer(momentum, (State("u"),), ("momentum",), is_scale_free=False),
    "adagrad": Optimizer(adagrad, (State("acc", sums=True, accumulates=True),)),
    "rowwise_adagrad": Optimizer(
        rowwise_adagrad,
        (State("acc", each_weight=False, sums=True, accumulates=True),),
        ("epsilon",),
    ),
    "adam": _ADAM,
    "adamw": _ADAM,
    "ftrl": Optimizer(ftrl, (State("q"), State("n", sums=True, accumulates=True)), ("l1", "l2")),
}
OPTIMIZERS = with_plugins(_OWN, "ctr_trainer.row_steps")
