"""Settings of the training of the dense variables, and of the training step."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.optimizers import DENSE_OPTIMIZERS, Adagrad, DenseOptimizer
from ctr_trainer.settings.schedule import Schedule
from ctr_trainer.settings.setting import Settings, one_of, same_as, setting
from ctr_trainer.system.messages.errors import UserError


@dataclasses.dataclass(frozen=True)
class LrGroups:
    """Factors of the learning rate by variable scope; 1 for variables in no scope, the longest scope takes precedence.

    A variable is in the scope `mlp` if its name is `mlp` or starts with `mlp/`.

    Attributes:
      factors: (scope, factor) pairs.
    """

    factors: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "LrGroups":
        """Parses `["mlp:0.1", "linear:2"]`; raises ValueError for other texts."""
        factors: dict[str, float] = {}
        for text in texts:
            scope, _, factor = text.rpartition(":")
            try:
                value = float(factor)
            except ValueError:
                value = math.nan
            if not scope or not 0 <= value < math.inf:
                raise ValueError("expected scope:factor, as mlp:0.1, the factor at least 0")
            if scope in factors:
                raise ValueError(f"{scope} has a factor already")
            factors[scope] = value
        return cls(tuple(factors.items()))

    def factors_of(self, variables: Sequence[Any]) -> list[float]:
        """Returns the factor of each variable.

        Raises:
          UserError: a scope has no variable; the message names the scopes of the model.
        """
        names = [variable.op.name for variable in variables]
        for scope, _ in self.factors:
            if not any(_is_in(name, scope) for name in names):
                scopes = sorted({"/".join(name.split("/")[:depth]) for name in names for depth in (1, 2)})
                raise UserError(f"lr_groups={scope}: no variable of the model is in it; there are {', '.join(scopes)}")
        return [self._factor(name) for name in names]

    def _factor(self, name: str) -> float:
        found = [(len(scope), factor) for scope, factor in self.factors if _is_in(name, scope)]
        return max(found)[1] if found else 1.0


def _is_in(name: str, scope: str) -> bool:
    return name == scope or name.startswith(f"{scope}/")


@dataclasses.dataclass(frozen=True)
class TrainSettings(Settings, title="Training"):
    """The settings of `estimator.optimize.TrainOp`, which explains them."""

    optimizer: DenseOptimizer | str = one_of(
        Adagrad(),
        DENSE_OPTIMIZERS,
        "optimizer of the dense variables, that is, of all variables but the embedding rows",
    )
    learning_rate: float = setting(
        0.02,
        "learning rate of the dense variables for one worker; --scale_lr adapts it to several workers",
        "1/step",
        minimum=0.0,
    )
    embedding_learning_rate: float = same_as(EmbeddingConfig, "learning_rate")
    scale_lr: str = setting(
        "linear",
        "factor of the learning rates for several workers. linear: the number of workers; sqrt: its square root; none: "
        "1; linear_batches and sqrt_batches: the number of batches per step, which is workers times "
        "--accumulation_steps, or its square root. Try sqrt or none if training diverges with many workers",
        choices=("linear", "sqrt", "none", "linear_batches", "sqrt_batches"),
    )
    fp16_allreduce: bool = setting(
        False, "with --dense_exchange=horovod: send dense gradients as float16, in half the bytes; for slow networks"
    )
    schedule: Schedule = Schedule("cooldown")
    embedding_lr_schedule: str = setting(
        "auto",
        "how the learning rate of the embedding rows changes. auto: as --lr_schedule says for the dense variables, but "
        "cooldown takes the last tenth of the run, not the last fifth; same: exactly as the dense variables' rate; "
        "cooldown: over the last tenth, whatever --lr_schedule is; constant",
        choices=("auto", "same", "cooldown", "constant"),
    )
    accumulation_steps: int = setting(
        1,
        "batches per optimizer step, whose gradients are accumulated; all other flags count optimizer steps. 0 or 1 "
        "accumulates none",
        "batches",
        minimum=0,
    )
    dense_sync_steps: int = setting(
        1,
        "steps between two exchanges of the dense variables. 1 averages the gradients of all workers at each step; N > "
        "1 is local SGD: each worker trains alone, and every N steps the workers average their variables. Raise it, "
        "for example to 30, if the log says that steps wait for the exchange",
        "steps",
        minimum=1,
    )
    overlap_allreduce: bool = setting(
        False,
        "with --dense_exchange=horovod: exchange the dense gradients of a step while the next step runs, and apply "
        "them one step late (staleness 1); hides the time of the exchange",
    )
    clip_norm: float = same_as(EmbeddingConfig, "clip_norm")
    l2: float = setting(
        0.0, "L2 regularization of the dense kernels: adds l2 / 2 * sum w^2 to the loss; 0 has none", minimum=0.0
    )
    lr_groups: tuple[str, ...] = setting(
        (),
        "factors of the learning rate by variable scope; 1 for variables in none of the scopes",
        "scope:factor",
        example=("mlp:0.1", "linear:2"),
    )

    @property
    def dense_optimizer(self) -> DenseOptimizer:
        """The optimizer of the dense variables; the constructor replaces a name by that optimizer's defaults."""
        assert isinstance(self.optimizer, DenseOptimizer)
        return self.optimizer

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accumulation_steps == 0:  # Another name of 1; all users divide by it or compare it.
            object.__setattr__(self, "accumulation_steps", 1)

    def conflicts(self) -> Iterator[str]:
        if self.overlap_allreduce and self.dense_sync_steps > 1:
            yield (
                "{overlap_allreduce:name} is about the exchange of each step, and {dense_sync_steps} has none: leave "
                "out one of the two"
            )
        try:
            LrGroups.parse(self.lr_groups)
        except ValueError as error:
            problem = str(error).replace("{", "{{").replace("}", "}}")
            yield f"{{lr_groups}}: {problem}"
