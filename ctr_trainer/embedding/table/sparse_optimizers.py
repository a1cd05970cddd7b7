"""The optimizers of rows by name: the optimizer state that each keeps in a row, and its kernel."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ctr_trainer.embedding.table import missed_steps, optimizer_kernels
from ctr_trainer.settings.optimizers import RowOptimizer, with_plugins


@dataclasses.dataclass(frozen=True)
class State:
    """A part of an optimizer's state.

    Attributes:
      name: the name in the kernel's docstring.
      each_weight: whether the part has one float per weight of a segment; else it has one float per segment.
      sums: whether the part is a sum over all steps, so that the changes of several workers are added. Else it is an
        average over the last steps, and the values of several workers are averaged.
      accumulates: whether the part starts at the optimizer's `initial_accumulator`; else it starts at 0.
      kept: for a slow average, the name of the setting with the fraction of it that a step keeps; "" for all other
        states. An average is slow if it covers more steps than lie between two syncs; Adam's v, for example, covers
        about 1 / (1 - beta2) = 1000 steps. The steps of all workers then count in it, see `merging`.
    """

    name: str
    each_weight: bool = True
    sums: bool = False
    accumulates: bool = False
    kept: str = ""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """The kernel and the state of an optimizer of rows; `settings.optimizers` has its settings.

    Attributes:
      step: the kernel, see `optimizer_kernels`.
      states: the parts of the state, in their order in a row.
      settings: the names of the kernel's settings, in the order of its arguments.
      is_scale_free: whether multiplying all gradients by one factor leaves the steps unchanged, except for the effects
        of epsilon and the initial accumulator.
      catch_up: for a dense optimizer, the kernel that applies the steps that a row missed, see `missed_steps`; the last
        part of the state is then the number of the row's steps. None for a lazy optimizer.
    """

    step: Callable[..., None]
    states: tuple[State, ...] = ()
    settings: tuple[str, ...] = ()
    is_scale_free: bool = True
    catch_up: Callable[..., None] | None = None

    def width(self, dim: int) -> int:
        """Returns the number of floats of state for a segment of `dim` weights."""
        return sum(dim if state.each_weight else 1 for state in self.states)

    def by_float(self, dims: Sequence[int]) -> list[State]:
        """Returns the State of each float of a row's optimizer state, for segments of widths `dims`."""
        return [state for dim in dims for state in self.states for _ in range(dim if state.each_weight else 1)]

    def initial_state(self, dims: Sequence[int], optimizer: RowOptimizer) -> np.ndarray:
        """Returns float32[n], the initial optimizer state of a row with segments of widths `dims`."""
        initial = getattr(optimizer, "initial_accumulator", 0.0)  # Only optimizers with sums of squares have it.
        return np.array([initial if state.accumulates else 0.0 for state in self.by_float(dims)], np.float32)

    def segments(self, dims: Sequence[int]) -> list[tuple[int, int]]:
        """Returns (first weight, first float of the state) of each segment in a row, for segments of widths `dims`."""
        widths = [self.width(dim) for dim in dims]
        return [(sum(dims[:i]), sum(dims) + sum(widths[:i])) for i in range(len(dims))]

    def kernel_settings(self, optimizer: RowOptimizer) -> tuple[np.float32, ...]:
        """Returns the kernel's settings, in the order of its arguments."""
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
    """Returns an optimizer that updates every row at every step."""
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
