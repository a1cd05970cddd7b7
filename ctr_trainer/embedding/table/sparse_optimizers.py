"""The sparse optimizers by name: what each keeps beside a row's weights, and how it makes a step."""

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np

from ctr_trainer.embedding.table import optimizer_kernels, row_kernels

# Rows that are fetched, and whose segments are then stepped one after the other: few enough for the core's second-level
# cache to keep them. Adagrad on 8,600 rows of 17 weights, of 195,000: 0.18 ms, and 0.29 without fetching them.
_STEP_BLOCK = 2048


@dataclasses.dataclass(frozen=True)
class OptimizerSettings:
    """What an optimizer is told besides its learning rate; a setting of another optimizer has to stay as it is here.

    Attributes:
      momentum: of `momentum`, from 0 to below 1.
      beta1, beta2: of `adam` and `adamw`, from 0 to below 1.
      epsilon: of `adam`, `adamw` and `rowwise_adagrad`, beside a square root; above 0.
      l1, l2: of `ftrl`, as in TensorFlow; at least 0.
      weight_decay: of `adamw`, a share of the weight a step of its row, times the learning rate; at least 0.
    """

    momentum: float = 0.9
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    l1: float = 0.0
    l2: float = 0.0
    weight_decay: float = 0.01

    def __post_init__(self):
        for name in ("momentum", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)}: it must be at least 0 and below 1")
        for name in ("l1", "l2", "weight_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} {getattr(self, name)}: it must be at least 0, and finite")
        if not 0 < self.epsilon < math.inf:
            raise ValueError(f"epsilon {self.epsilon}: it must be above 0, and finite")

    @classmethod
    def of(cls, value):
        """-> the settings that a Mapping, such as JSON gives, or an instance says."""
        return cls(**value) if isinstance(value, Mapping) else value


@dataclasses.dataclass(frozen=True)
class State:
    """A part of an optimizer's state.

    Attributes:
      name: as in the kernel's docstring.
      each_weight: whether it is a float for each weight of a segment; else one for the segment.
      sums: whether it is a sum over all steps, so that workers' changes of it add up; else an average over the last
        steps, so that workers' values of it are averaged.
      accumulates: whether it starts at `initial_accumulator`; else at 0.
      kept: the field of OptimizerSettings that says what share of it a step keeps, of an average over so many steps
        that workers' steps of it count one after the other; "" of the others. See `merging`.
    """

    name: str
    each_weight: bool = True
    sums: bool = False
    accumulates: bool = False
    kept: str = ""


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """
    Attributes:
      step: the kernel.
      states: in the order in which they lie in a row.
      settings: the fields of OptimizerSettings that it reads.
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

    def initial_state(self, dims, accumulator):
        """-> float32[state floats], of a new row with the segments `dims`."""
        return np.array([accumulator if state.accumulates else 0.0 for state in self.by_float(dims)], np.float32)

    def step_rows(self, rows, slots, gradients, learning_rate, settings):
        """One step of each segment of the rows at `slots`.

        Args:
          rows: float32[n, width], changed in place.
          slots: int64[U], distinct; -1 is skipped.
          gradients: float32[U, dim] of each segment.
          learning_rate: a float.
          settings: of `settings_array`.
        """
        weights = sum(gradient.shape[1] for gradient in gradients)
        for first in range(0, len(slots), _STEP_BLOCK):
            block = slice(first, first + _STEP_BLOCK)
            row_kernels.fetch(rows, slots[block])
            start, state = 0, weights
            for gradient in gradients:
                self.step(rows, slots[block], gradient[block], start, state, learning_rate, settings)
                start += gradient.shape[1]
                state += self.width(gradient.shape[1])

    def settings_array(self, settings):
        """OptimizerSettings -> float32[7] as the kernels take it, 0 for what this optimizer does not read."""
        values = dataclasses.asdict(settings)
        return np.array([value if name in self.settings else 0.0 for name, value in values.items()], np.float32)

    def check(self, name, settings):
        """Raises ValueError where `settings` sets something that this optimizer, called `name`, does not read."""
        for field in dataclasses.fields(settings):
            value = getattr(settings, field.name)
            if value != field.default and field.name not in self.settings:
                takes = f"takes {', '.join(self.settings)}" if self.settings else "takes no setting"
                raise ValueError(f"{field.name} {value} is not for optimizer {name}, which {takes}")


_ADAM = (
    State("m"),
    State("v", kept="beta2"),
    State("c1", each_weight=False),
    State("c2", each_weight=False, kept="beta2"),
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
    "adam": Optimizer(optimizer_kernels.adam, _ADAM, ("beta1", "beta2", "epsilon")),
    "adamw": Optimizer(optimizer_kernels.adam, _ADAM, ("beta1", "beta2", "epsilon", "weight_decay")),
    "ftrl": Optimizer(optimizer_kernels.ftrl, (State("q"), State("n", sums=True, accumulates=True)), ("l1", "l2")),
}


def find_optimizer(name):
    """-> the Optimizer of that name.

    Raises:
      ValueError: there is none; says which there are, and why not `lamb`.
    """
    if name in OPTIMIZERS:
        return OPTIMIZERS[name]
    hint = ""
    if name == "lamb":
        hint = (
            ": lamb scales a step by the ratio of norms of a layer's weights and of their change, and of a row that is "
            "one linear weight that ratio says nothing; take adamw"
        )
    raise ValueError(f"optimizer {name!r} is not one of {', '.join(OPTIMIZERS)}{hint}")
