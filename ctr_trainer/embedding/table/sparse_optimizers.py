"""How each optimizer of rows steps them, by name: what it keeps beside a row's weights, and its kernel."""

import dataclasses
from collections.abc import Callable

import numpy as np

from ctr_trainer.embedding.table import optimizer_kernels, row_kernels

# Rows that are fetched, and whose segments are then stepped one after the other: few enough for the core's second-level
# cache to keep them. Adagrad on 8,600 rows of 17 weights, of 195,000: 0.18 ms, and 0.29 without fetching them.
_STEP_BLOCK = 2048


@dataclasses.dataclass(frozen=True)
class State:
    """A part of an optimizer's state.

    Attributes:
      name: as in the kernel's docstring.
      each_weight: whether it is a float for each weight of a segment; else one for the segment.
      sums: whether it is a sum over all steps, so that workers' changes of it add up; else an average over the last
        steps, so that workers' values of it are averaged.
      accumulates: whether it starts at the optimizer's `initial_accumulator`; else at 0.
      kept: the optimizer's setting that says what share of it a step keeps, of an average over so many steps
        that workers' steps of it count one after the other; "" of the others. See `merging`.
    """

    name: str
    each_weight: bool = True
    sums: bool = False
    accumulates: bool = False
    kept: str = ""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """How rows are stepped; `settings.row_optimizer` has the settings.

    Attributes:
      step: the kernel.
      states: in the order in which they lie in a row.
      settings: the names of the settings that the kernel takes, in its order.
      is_scale_free: whether a gradient twice as large, from the first one on, makes the same steps, but for what
        epsilon and initial accumulator do.
    """

    step: Callable
    states: tuple[State, ...] = ()
    settings: tuple[str, ...] = ()
    is_scale_free: bool = True

    def width(self, dim):
        """-> floats of state of a segment of `dim` weights."""
        return sum(dim if state.each_weight else 1 for state in self.states)

    def by_float(self, dims):
        """-> list of the State that each float of a row's state is part of, for the segments `dims`."""
        return [state for dim in dims for state in self.states for _ in range(dim if state.each_weight else 1)]

    def initial_state(self, dims, optimizer):
        """-> float32[state floats], of a new row with the segments `dims`; `optimizer` is its `RowOptimizer`."""
        states = self.by_float(dims)
        return np.array([optimizer.initial_accumulator if state.accumulates else 0.0 for state in states], np.float32)

    def step_rows(self, rows, slots, gradients, learning_rate, settings):
        """One step of each segment of the rows at `slots`.

        Args:
          rows: float32[n, width], changed in place.
          slots: int64[U], distinct; -1 is skipped.
          gradients: float32[U, dim] of each segment.
          learning_rate: a float.
          settings: of `kernel_settings`.
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
        """-> what the kernel takes of a `RowOptimizer`, a tuple of float32."""
        return tuple(np.float32(getattr(optimizer, name)) for name in self.settings)


_ADAM = Optimizer(
    optimizer_kernels.adam,
    (
        State("m"),
        State("v", kept="beta2"),
        State("c1", each_weight=False),
        State("c2", each_weight=False, kept="beta2"),
    ),
    ("beta1", "beta2", "epsilon", "weight_decay"),
)
OPTIMIZERS = {
    "sgd": Optimizer(optimizer_kernels.sgd, is_scale_free=False),
    "momentum": Optimizer(optimizer_kernels.momentum, (State("u"),), ("momentum",), is_scale_free=False),
    "adagrad": Optimizer(optimizer_kernels.adagrad, (State("acc", sums=True, accumulates=True),)),
    "rowwise_adagrad": Optimizer(
        optimizer_kernels.rowwise_adagrad,
        (State("acc", each_weight=False, sums=True, accumulates=True),),
        ("epsilon",),
    ),
    "adam": _ADAM,
    "adamw": _ADAM,
    "ftrl": Optimizer(optimizer_kernels.ftrl, (State("q"), State("n", sums=True, accumulates=True)), ("l1", "l2")),
}
