"""The settings of the optimizers of dense variables and of embedding rows, one class per optimizer."""

import dataclasses
import functools
import importlib.metadata
import typing
from collections.abc import Mapping
from typing import Any

from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.system.messages.errors import UserError

_SHARE: dict[str, Any] = dict(unit="share", minimum=0.0, below=1.0)
_DECAY: dict[str, Any] = dict(unit="1/step", minimum=0.0)
_DECAY_HELP = "decay of the dense kernels per step: a step multiplies them by 1 - learning rate * weight_decay"


def with_plugins(own: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Returns `own` and the objects that installed packages declare as entry points of a group, by name.

    They are available in every process, including the shards of the embedding service, and `--help` shows the flags of
    their settings.

    Raises:
      UserError: two objects have the same name, or one cannot be loaded.
    """
    found = dict(own)
    for point in importlib.metadata.entry_points(group=group):
        package = point.dist.name if point.dist else "a package"
        which = f"{point.name} = {point.value}, an entry point of {group} that {package} has"
        if point.name in found:
            raise UserError(f"{which}, has the name of another optimizer: rename it")
        try:
            found[point.name] = point.load()
        except Exception as error:
            raise UserError(
                f"{which}, cannot be loaded ({type(error).__name__}: {error}): correct or uninstall {package}"
            ) from error
    return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class DenseOptimizer(Settings, title="Optimizer of the dense variables", params_flag="optimizer_params"):
    """The update of a variable w by its gradient g at the learning rate lr, t optimizer steps after the first.

    With `weight_decay`, every optimizer first applies w -= lr weight_decay w, except LAMB, which adds the decay to r.
    FTRL changes z accordingly: z += lr weight_decay w (sqrt(n) + 2 lr ftrl_l2). Only kernels decay; see
    `estimator.dense_optimizers.is_kernel`. The optimizer state has the names that the `tf.compat.v1` optimizers use,
    except FTRL's z, which is a different quantity.
    """

    name: typing.ClassVar[str]
    weight_decay: float = setting(0.0, _DECAY_HELP, **_DECAY)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sgd(DenseOptimizer):
    """w -= lr g"""

    name: typing.ClassVar[str] = "sgd"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Momentum(DenseOptimizer):
    """m = momentum m + g;  w -= lr m"""

    name: typing.ClassVar[str] = "momentum"
    momentum: float = setting(0.9, "share of the velocity that a step keeps", **_SHARE)


_dense_accumulator = functools.partial(
    setting, 0.1, "what the sum of squared gradients starts at", "gradient^2", above=0.0
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adagrad(DenseOptimizer):
    """a += g^2;  w -= lr g / sqrt(a), where a starts at `initial_accumulator`.

    Source: Duchi et al., Adaptive Subgradient Methods, JMLR 2011.
    """

    name: typing.ClassVar[str] = "adagrad"
    initial_accumulator: float = _dense_accumulator()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Adam(DenseOptimizer):
    """m += (1 - beta1)(g - m);  v += (1 - beta2)(g^2 - v);
    w -= lr sqrt(1 - beta2^(t+1)) / (1 - beta1^(t+1)) m / (sqrt(v) + epsilon)

    Source: Kingma and Ba, Adam, ICLR 2015, end of section 2.
    """

    name: typing.ClassVar[str] = "adam"
    beta1: float = setting(0.9, "share of the mean gradient that a step keeps", **_SHARE)
    beta2: float = setting(0.999, "share of the mean square that a step keeps", **_SHARE)
    epsilon: float = setting(1e-8, "number added to the root of the mean square", minimum=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """`Adam` with a nonzero default `weight_decay`.

    Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2; the decay is
    multiplied by lr as in Keras and PyTorch.
    """

    name: typing.ClassVar[str] = "adamw"
    weight_decay: float = setting(0.01, _DECAY_HELP, **_DECAY)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lamb(Adam):
    """m, v as `Adam`;  r = m / (1 - beta1^(t+1)) / (sqrt(v / (1 - beta2^(t+1))) + epsilon) + weight_decay w;
    w -= lr |w| / |r| r, with 1 in place of |w| / |r| if either norm is 0

    Source: You et al., Large Batch Optimization for Deep Learning, ICLR 2020, algorithm 2.
    """

    name: typing.ClassVar[str] = "lamb"
    weight_decay: float = setting(0.01, _DECAY_HELP, **_DECAY)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ftrl(DenseOptimizer):
    """s = sqrt(n + g^2) - sqrt(n);  z += lr g - s w;  n += g^2, where n starts at `initial_accumulator`;
    w = -(z - sign(z) lr ftrl_l1) / (sqrt(n) + 2 lr ftrl_l2) where |z| > lr ftrl_l1, else 0

    This z is lr times the paper's z. At a constant learning rate both give the same steps; with the paper's z, a
    decaying learning rate would shrink all weights with it.

    Source: McMahan et al., Ad Click Prediction, KDD 2013, algorithm 1.
    """

    name: typing.ClassVar[str] = "ftrl"
    initial_accumulator: float = _dense_accumulator()
    ftrl_l1: float = setting(0.0, "penalty l1 * |w| of each weight", minimum=0.0)
    ftrl_l2: float = setting(0.0, "penalty l2 * w * w of each weight", minimum=0.0)


DENSE_OPTIMIZERS = {kind.name: kind for kind in (Sgd, Momentum, Adagrad, Adam, AdamW, Lamb, Ftrl)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOptimizer(Settings, title="Optimizer of the embedding rows", params_flag="embedding_optimizer_params"):
    """The base class of the row optimizers; see `embedding.table.optimizer_kernels` for the equations.

    Your own package can add an optimizer with two entry points; see docs/sparse_optimizers.md. With `moves_all_rows`,
    every row moves at every step; see `embedding.table.missed_steps`.
    """

    name: typing.ClassVar[str]
    moves_all_rows: typing.ClassVar[bool] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowSgd(RowOptimizer):
    name: typing.ClassVar[str] = "sgd"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowMomentum(RowOptimizer):
    name: typing.ClassVar[str] = "momentum"
    momentum: float = setting(0.9, "share of the velocity that a step keeps", **_SHARE)


_ACCUMULATOR = (
    "value at which the sum of squared gradients of a new row starts. A larger value makes the first steps of a new "
    "row smaller; raise it, for example to 1e-2, if a model overfits rare values"
)
_accumulator = functools.partial(setting, 1e-4, _ACCUMULATOR, "gradient^2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowAdagrad(RowOptimizer):
    name: typing.ClassVar[str] = "adagrad"
    initial_accumulator: float = _accumulator(above=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowwiseAdagrad(RowOptimizer):
    name: typing.ClassVar[str] = "rowwise_adagrad"
    initial_accumulator: float = _accumulator(minimum=0.0)
    epsilon: float = setting(1e-8, "number added to the root of the squares", above=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowAdam(RowOptimizer):
    name: typing.ClassVar[str] = "adam"
    weight_decay: typing.ClassVar[float] = 0.0
    beta1: float = setting(0.9, "share of the mean gradient that a step keeps", **_SHARE)
    beta2: float = setting(0.999, "share of the mean square that a step keeps", **_SHARE)
    epsilon: float = setting(1e-8, "number added to the root of the squares", above=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowAdamW(RowAdam):
    name: typing.ClassVar[str] = "adamw"
    weight_decay: float = setting(  # type: ignore[misc]  # Adam has a constant instead.
        0.01,
        "decoupled decay of the rows of a batch: share of a weight that a step takes off, times the learning rate",
        "1/step",
        minimum=0.0,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowFtrl(RowOptimizer):
    name: typing.ClassVar[str] = "ftrl"
    initial_accumulator: float = _accumulator(minimum=0.0)
    l1: float = setting(0.0, "penalty l1 * |w| of each weight", minimum=0.0)
    l2: float = setting(0.0, "penalty l2 * w * w of each weight", minimum=0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowDenseSgd(RowSgd):
    name: typing.ClassVar[str] = "dense_sgd"
    moves_all_rows: typing.ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowDenseAdagrad(RowAdagrad):
    name: typing.ClassVar[str] = "dense_adagrad"
    moves_all_rows: typing.ClassVar[bool] = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowDenseAdam(RowAdam):
    name: typing.ClassVar[str] = "dense_adam"
    moves_all_rows: typing.ClassVar[bool] = True


_LAZY = (RowSgd, RowMomentum, RowAdagrad, RowwiseAdagrad, RowAdam, RowAdamW, RowFtrl)
ROW_OPTIMIZERS = with_plugins(
    {kind.name: kind for kind in (*_LAZY, RowDenseSgd, RowDenseAdagrad, RowDenseAdam)}, "ctr_trainer.row_optimizers"
)
