"""Settings of the training of the dense variables: the step, and the schedule of its learning rate."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ctr_trainer.settings.embedding_config import EmbeddingConfig
from ctr_trainer.settings.optimizers import DENSE_OPTIMIZERS, Adagrad, DenseOptimizer
from ctr_trainer.settings.setting import Settings, declared, one_of, same_as, setting
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.messages.errors import UserError

# Schedules that depend on the length of the run if `decay_steps` is 0.
OF_THE_RUN = ("linear", "cosine", "cooldown")
_DECAYS = ("linear", "cosine", "exponential", "step", "cooldown")


@dataclasses.dataclass(frozen=True)
class Schedule(Settings, title="Schedule of the learning rate", params_flag="lr_schedule_params"):
    """The factor of a learning rate at optimizer step t, counted from 0: warm-up, then decay.

        factor(t) = min(1, (t + 1) / warmup_steps) * decay(max(t - first, 0) / steps)

        constant:     decay(x) = 1
        linear:       decay(x) = 1 - (1 - end) * min(x, 1)
        cosine:       decay(x) = end + (1 - end) * (1 + cos(pi * min(x, 1))) / 2
        exponential:  decay(x) = max(decay_rate ** x, end)
        step:         decay(x) = max(decay_rate ** floor(x), end)
        piecewise:    factors[i] in place of decay(x), where i of the boundaries are at most t
        cooldown:     as linear
        plateau:      max(decay_rate ** falls, end), see `estimator.dense_optimizers.Plateau`

    With `decay_steps`, the decay begins when the warm-up is over (first = warmup_steps) and takes decay_steps; a
    cooldown takes the last decay_steps of the run. Without `decay_steps`, linear and cosine begin with the run, or when
    the warm-up is over, and end with the run; a cooldown takes the last fifth of the run. If the number of steps of the
    run is unknown, a schedule that depends on it does not decay.

    With the unit `epoch`, t is counted from the beginning of the data's first epoch, and warmup_steps, decay_steps and
    boundaries are multiplied by the optimizer steps per epoch. Therefore the rate depends on the position in the data,
    also after a resume with another batch size or number of workers. With the unit `step`, they must be whole numbers.

    Raises:
      UserError: settings contradict each other, or a required one is missing.

    Source: cosine: Loshchilov and Hutter, SGDR, ICLR 2017, equation 5; warm-up: Goyal et al., Accurate, Large
    Minibatch SGD, 2017, section 2.2; staircases: He et al., Deep Residual Learning, CVPR 2016, section 3.4; cooldown:
    Haegele et al., Scaling Laws and Compute-Optimal Training Beyond Fixed Training Durations, NeurIPS 2024.
    """

    name: str = setting(
        "constant",
        "how the learning rate of the dense variables changes after the warm-up. cooldown: constant, then falls to 0 "
        "over the last fifth of the run; linear, cosine: falls over the whole run; exponential: falls a little at each "
        "step; step: falls in stairs; piecewise: changes at boundaries; plateau: falls when --best_metric does "
        "not improve",
        choices=("constant", "linear", "cosine", "exponential", "step", "piecewise", "cooldown", "plateau"),
        flag="lr_schedule",
    )
    warmup_steps: float = setting(
        0, "warm-up: steps or epochs over which the learning rates rise from 0; 0 has none", "unit", minimum=0.0
    )
    decay_steps: float = setting(
        0,
        "steps or epochs over which the rate falls; 0: the whole run, or its last fifth with cooldown. With "
        "exponential and step: steps or epochs per factor of decay_rate",
        "unit",
        minimum=0.0,
        of=_DECAYS,
    )
    decay_rate: float = setting(
        0.0,
        "factor between 0 and 1 that the rate is multiplied by at each decay",
        "factor",
        minimum=0.0,
        below=1.0,
        of=("exponential", "step", "plateau"),
    )
    end: float = setting(
        0.0,
        "share of the learning rate that is left at the end of the schedule",
        "factor",
        minimum=0.0,
        maximum=1.0,
        of=(*_DECAYS, "plateau"),
    )
    patience: int = setting(
        0,
        "number of evaluations without an improvement of --best_metric after which the rate is lowered",
        "times",
        minimum=0,
        of=("plateau",),
    )
    unit: str = setting(
        "step",
        "unit of warmup_steps, decay_steps and boundaries: optimizer steps, or epochs, which may be fractions "
        "such as 0.5",
        choices=("step", "epoch"),
    )
    boundaries: tuple[float, ...] = setting(
        (),
        "steps or epochs at which the rate changes, counted from the first step of the model",
        "unit",
        above=0.0,
        of=("piecewise",),
        example=(1000.0, 2000.0),
    )
    factors: tuple[float, ...] = setting(
        (),
        "shares of the learning rate before, between and after the boundaries; one more than boundaries",
        "factor",
        minimum=0.0,
        of=("piecewise",),
        example=(1.0, 0.1, 0.01),
    )

    def conflicts(self) -> Iterator[str]:
        for field in dataclasses.fields(self):
            of = declared(field).of
            if of and getattr(self, field.name) and self.name not in of:
                users = " and ".join(filter(None, (", ".join(of[:-1]), of[-1])))
                yield f"{{{field.name}}} is for {{name:name}}={users}, not {self.name}: leave it out"
        if self.name in ("exponential", "step") and not self.decay_steps:
            yield ("{name} needs {decay_steps:name}, the optimizer steps or epochs that one {decay_rate:name} takes")
        if self.name in ("exponential", "step", "plateau") and not self.decay_rate:
            yield "{name} needs a {decay_rate:name} between 0 and 1"
        if self.name == "plateau" and not self.patience:
            yield "{name} needs {patience:name}, the evaluations without an improvement that it waits for"
        if self.name == "piecewise":
            if not self.boundaries or len(self.factors) != len(self.boundaries) + 1:
                yield (
                    "{name} needs {boundaries:name} and one more of {factors:name}, as {boundaries:name}=1000,2000 "
                    f"{{factors:name}}=1,0.1,0.01; there are {len(self.boundaries)} and {len(self.factors)}"
                )
            if list(self.boundaries) != sorted(set(self.boundaries)):
                yield "{boundaries}: expected ascending numbers above 0"
        warmup, decay = (self.warmup_steps,), (self.decay_steps,)
        counted = {"warmup_steps": warmup, "decay_steps": decay, "boundaries": self.boundaries}
        if self.unit == "epoch" and not any(map(any, counted.values())):
            names = ", ".join(f"{{{name}:name}}" for name in counted)
            yield f"{{unit}} is the unit of {names}: give one of them, or leave it out"
        for name, values in counted.items():
            if self.unit == "step" and not all(math.floor(value) == value for value in values):
                yield f"{{{name}}}: steps are whole; with {{unit:name}}=epoch it is in epochs"

    @property
    def depends_on_end(self) -> bool:
        """Whether the factor depends on the last step of the run."""
        return self.name == "cooldown" or (self.name in OF_THE_RUN and not self.decay_steps)


def check_plateau(patience: int, evaluation: EvaluationConfig | None) -> None:
    """Raises UserError if the evaluations of a run (None if it has none) can never lower its learning rates."""
    if evaluation is None or not evaluation.best_metric:
        missing = "eval_steps and best_metric" if evaluation is None else "best_metric"
        raise UserError(f"lr_schedule=plateau goes by what evaluations find: give {missing}, as best_metric=auc")
    if 0 < evaluation.early_stopping_patience <= patience:
        raise UserError(
            f"early_stopping_patience={evaluation.early_stopping_patience} would end the training before "
            f"patience={patience} of the schedule lowers a learning rate: give early stopping the greater patience"
        )


def parse_lr_groups(texts: Iterable[str]) -> dict[str, float]:
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
    return factors


def factors_of(groups: Mapping[str, float], variables: Sequence[Any]) -> list[float]:
    """Returns the factor of each variable: that of its longest scope, or 1.

    A variable is in the scope `mlp` if its name is `mlp` or starts with `mlp/`. Raises UserError, which names the
    scopes of the model, if a scope has no variable.
    """
    names = [variable.op.name for variable in variables]
    for scope in groups:
        if not any(f"{name}/".startswith(f"{scope}/") for name in names):
            scopes = sorted({"/".join(name.split("/")[:depth]) for name in names for depth in (1, 2)})
            raise UserError(f"lr_groups={scope}: no variable of the model is in it; there are {', '.join(scopes)}")
    scopes_of = ([scope for scope in groups if f"{name}/".startswith(f"{scope}/")] for name in names)
    return [groups[max(scopes, key=len)] if scopes else 1.0 for scopes in scopes_of]


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
        try:
            parse_lr_groups(self.lr_groups)
        except ValueError as error:
            problem = str(error).replace("{", "{{").replace("}", "}}")
            yield f"{{lr_groups}}: {problem}"
