"""The optimizers of rows by name: the state that each keeps next to a row's weights, and its kernel."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ctr_trainer.embedding.table import missed_steps, optimizer_kernels, row_kernels
from ctr_trainer.settings.optimizers import RowOptimizer, with_plugins

# Rows that are prefetched together, before their segments are stepped one after the other: few enough to stay in the
# core's second-level cache. An Adagrad step of 8,600 rows of 17 weights, in a table of 195,000 rows, takes 0.18 ms, and
# without prefetching 0.29 ms.
_STEP_BLOCK = 2048


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
    """An optimizer of rows: its kernel and its state; `settings.optimizers` has its settings.

    Attributes:
      step: the kernel, see `optimizer_kernels`.
      states: the parts of its state, in the order in which they lie in a row.
      settings: the names of the settings that the kernel takes, in its order.
      is_scale_free: whether its steps stay the same if all gradients are multiplied by one factor, except for what
        epsilon and the initial accumulator do.
      catch_up: of a dense optimizer, the kernel that makes the steps that a row missed, see `missed_steps`; its last
        state is the number of a row's steps. None for a lazy optimizer.
    """

    step: Callable[..., None]
    states: tuple[State, ...] = ()
    settings: tuple[str, ...] = ()
    is_scale_free: bool = True
    catch_up: Callable[..., None] | None = None

    def width(self, dim: int) -> int:
        """Returns floats of state of a segment of `dim` weights."""
        return sum(dim if state.each_weight else 1 for state in self.states)

    def by_float(self, dims: Sequence[int]) -> list[State]:
        """Returns the State that each float of a row's state belongs to, for segments `dims`."""
        return [state for dim in dims for state in self.states for _ in range(dim if state.each_weight else 1)]

    def initial_state(self, dims: Sequence[int], optimizer: RowOptimizer) -> np.ndarray:
        """Returns float32[n], the state of a new row with the segments `dims`, trained by `optimizer`."""
        initial = getattr(optimizer, "initial_accumulator", 0.0)  # Optimizers without sums of squares have none.
        return np.array([initial if state.accumulates else 0.0 for state in self.by_float(dims)], np.float32)

    def step_rows(
        self,
        rows: np.ndarray,
        slots: np.ndarray,
        gradients: Sequence[np.ndarray],
        learning_rate: float,
        settings: tuple[np.float32, ...],
    ) -> None:
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

    def kernel_settings(self, optimizer: RowOptimizer) -> tuple[np.float32, ...]:
        """Returns the settings that the kernel takes, in its order."""
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
_STEPS = State("steps", each_weight=False)
_SGD = Optimizer(optimizer_kernels.sgd, is_scale_free=False)
_ADAGRAD = Optimizer(optimizer_kernels.adagrad, (State("acc", sums=True, accumulates=True),))


def _dense(optimizer: Optimizer, catch_up: Callable[..., None]) -> Optimizer:
    """Returns an optimizer that moves every row at every step."""
    return dataclasses.replace(optimizer, states=(*optimizer.states, _STEPS), catch_up=catch_up)


_OWN = {
    "sgd": _SGD,
    "momentum": Optimizer(optimizer_kernels.momentum, (State("u"),), ("momentum",), is_scale_free=False),
    "adagrad": _ADAGRAD,
    "rowwise_adagrad": Optimizer(
        optimizer_kernels.rowwise_adagrad,
        (State("acc", each_weight=False, sums=True, accumulates=True),),
        ("epsilon",),
    ),
    "adam": _ADAM,
    "adamw": _ADAM,
    "ftrl": Optimizer(optimizer_kernels.ftrl, (State("q"), State("n", sums=True, accumulates=True)), ("l1", "l2")),
    "dense_sgd": _dense(_SGD, missed_steps.sgd),
    "dense_adagrad": _dense(_ADAGRAD, missed_steps.adagrad),
    "dense_adam": _dense(_ADAM, missed_steps.adam),
}
OPTIMIZERS = with_plugins(_OWN, "ctr_trainer.row_steps")
