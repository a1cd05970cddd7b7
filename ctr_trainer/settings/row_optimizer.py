"""The settings of the optimizers of the embedding rows, one class an optimizer; `embedding` has their steps."""

import dataclasses
import typing

from ctr_trainer.settings.plugins import with_plugins
from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOptimizer(Settings, title="Optimizer of the embedding rows"):
    """The base of them; see `sparse_optimizers` for the equations.

    A package of your own adds one by two entry points, see docs/sparse_optimizers.md.

    Attributes:
      name: of the optimizer.
    """

    name: typing.ClassVar[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSgd(RowOptimizer):
    name: typing.ClassVar[str] = "sgd"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowMomentum(RowOptimizer):
    name: typing.ClassVar[str] = "momentum"
    momentum: float = setting(
        0.9, "share of the velocity that a step keeps", "share", minimum=0.0, below=1.0, flag="embedding_momentum"
    )


_ACCUMULATOR = "what the sum of squared gradients of a new row starts at"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowAdagrad(RowOptimizer):
    name: typing.ClassVar[str] = "adagrad"
    initial_accumulator: float = setting(
        1e-4, _ACCUMULATOR, "gradient^2", above=0.0, flag="embedding_initial_accumulator"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad(RowOptimizer):
    name: typing.ClassVar[str] = "rowwise_adagrad"
    initial_accumulator: float = setting(
        1e-4, _ACCUMULATOR, "gradient^2", minimum=0.0, flag="embedding_initial_accumulator"
    )
    epsilon: float = setting(1e-8, "number added to the root of the squares", above=0.0, flag="embedding_epsilon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowAdam(RowOptimizer):
    name: typing.ClassVar[str] = "adam"
    weight_decay: typing.ClassVar[float] = 0.0
    beta1: float = setting(
        0.9, "share of the mean gradient that a step keeps", "share", minimum=0.0, below=1.0, flag="embedding_beta1"
    )
    beta2: float = setting(
        0.999, "share of the mean square that a step keeps", "share", minimum=0.0, below=1.0, flag="embedding_beta2"
    )
    epsilon: float = setting(1e-8, "number added to the root of the squares", above=0.0, flag="embedding_epsilon")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowAdamW(RowAdam):
    name: typing.ClassVar[str] = "adamw"
    weight_decay: float = setting(
        0.01,
        "decoupled decay of the rows of a batch: share of a weight that a step takes off, times the learning rate",
        "1/step",
        minimum=0.0,
        flag="embedding_weight_decay",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowFtrl(RowOptimizer):
    name: typing.ClassVar[str] = "ftrl"
    initial_accumulator: float = setting(
        1e-4, _ACCUMULATOR, "gradient^2", minimum=0.0, flag="embedding_initial_accumulator"
    )
    l1: float = setting(0.0, "penalty l1 * |w| of each weight", minimum=0.0, flag="embedding_ftrl_l1")
    l2: float = setting(0.0, "penalty l2 * w * w of each weight", minimum=0.0, flag="embedding_ftrl_l2")


ROW_OPTIMIZERS = with_plugins(
    {kind.name: kind for kind in (RowSgd, RowMomentum, RowAdagrad, RowwiseAdagrad, RowAdam, RowAdamW, RowFtrl)},
    "ctr_trainer.row_optimizers",
)
# Optimizers of dense variables that rows have not, and why.
NO_ROW_OPTIMIZERS = {
    "lamb": "lamb scales a step by the ratio of norms of a layer's weights and of their change, and of a row that is "
    "one linear weight that ratio says nothing; take adamw"
}
