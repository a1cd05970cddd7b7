"""Flags of the training of the dense variables, and of what a step is."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class ScheduleFlags:
    """How the learning rates change"""

    lr_schedule: str = flag(
        "cooldown",
        "how the dense variables' learning rate changes after the warm-up: cooldown falls over the run's last fifth, "
        "linear and cosine over the run, plateau when --best_metric does not improve; exponential falls step by step, "
        "step in stairs, piecewise where --lr_boundaries say; constant stays",
        choices=("constant", "linear", "cosine", "exponential", "step", "piecewise", "cooldown", "plateau"),
    )
    lr_unit: str = flag(
        "step",
        "what --warmup_steps, --decay_steps and --lr_boundaries count: optimizer steps, or epochs, as 0.5",
        choices=("step", "epoch"),
    )
    warmup_steps: float = flag(0.0, "over which the learning rates rise from 0", "--lr_unit", minimum=0.0)
    decay_steps: float = flag(
        0.0,
        "that the decay takes; 0 for the run's, of cooldown a fifth of them; of exponential and step, for one "
        "--decay_rate",
        "--lr_unit",
        minimum=0.0,
    )
    decay_rate: float = flag(
        0.0, "exponential, step, plateau: what the rate is multiplied by, between 0 and 1", "factor", minimum=0.0
    )
    lr_boundaries: tuple[float, ...] = flag(
        (), "piecewise: where the rate changes, counted from the first step of the model, as 1000,2000", "--lr_unit"
    )
    lr_factors: tuple[float, ...] = flag(
        (), "piecewise: the rate before, between and after --lr_boundaries, as 1,0.1,0.01", "factor"
    )
    plateau_patience: int = flag(
        0, "plateau: evaluations without an improvement of --best_metric that lower the rate once", "times", minimum=0
    )
    end_learning_rate: float = flag(0.0, "what the schedule ends at, in learning rates", "factor", minimum=0.0)
    embedding_lr_schedule: str = flag(
        "cooldown",
        "how the rows' learning rate changes: constant until it falls to 0 over the last tenth of the run (cooldown), "
        "constant, or as --lr_schedule says (same)",
        choices=("cooldown", "constant", "same"),
    )


@dataclasses.dataclass(frozen=True)
class OptimizerFlags:
    """Optimizer of the dense variables"""

    optimizer: str = flag(
        "adagrad",
        "of the dense variables",
        choices=("sgd", "momentum", "adagrad", "adam", "adamw", "lamb", "ftrl"),
    )
    momentum: float = flag(0.9, "of momentum", minimum=0.0)
    dense_accumulator: float = flag(0.1, "what the state of adagrad and ftrl starts at", minimum=0.0)
    adam_beta1: float = flag(0.9, "of adam, adamw and lamb", minimum=0.0)
    adam_beta2: float = flag(0.999, "of adam, adamw and lamb", minimum=0.0)
    adam_epsilon: float = flag(1e-8, "of adam, adamw and lamb", minimum=0.0)
    weight_decay: float | None = flag(
        None,
        "share of the dense kernels that a step takes off, times the learning rate; 0.01 of adamw and lamb, else 0",
        "1/step",
        minimum=0.0,
    )
    ftrl_l1: float = flag(0.0, "of ftrl", minimum=0.0)
    ftrl_l2: float = flag(0.0, "of ftrl", minimum=0.0)


# Flags that are about an exchange by Horovod, and so make it one.
OF_HOROVOD = ("fp16_allreduce", "overlap_allreduce", "autotune", "autotune_log", "horovod_timeline")


@dataclasses.dataclass(frozen=True)
class ExchangeFlags:
    """Exchange of the dense variables between workers"""

    dense_exchange: str = flag(
        "auto",
        "auto: through memory that the workers share if they compute on the processor of one host, else by Horovod, "
        "whose are the settings below but for --dense_sync_steps",
        choices=("auto", "shared_memory", "horovod"),
    )
    fp16_allreduce: bool = flag(False, "send dense gradients as float16")
    overlap_allreduce: bool = flag(
        False, "reduce a step's dense gradients while the next one runs, and apply them then"
    )
    dense_sync_steps: int = flag(
        1, "1 reduces the gradients each step; N lets workers step alone and averages the variables each N", minimum=1
    )
    autotune: bool = flag(False, "let Horovod search for its best settings while training, and write --autotune_log")
    autotune_log: str = flag(
        "", "with --autotune: what it writes, MODEL_DIR/autotune.csv if not given; without: settings to take", "path"
    )


@dataclasses.dataclass(frozen=True)
class TrainingFlags(OptimizerFlags, ScheduleFlags, ExchangeFlags):
    """Training"""

    max_steps: int = flag(0, "global step to stop at; 0 goes on until --epochs are over", "steps", minimum=0)
    learning_rate: float = flag(0.02, "of the dense variables, for one worker", "1/step", minimum=0.0)
    scale_lr: str = flag(
        "linear",
        "how learning rates grow: with the workers or their root; with the workers times --accumulation_steps or its "
        "root (linear_batches, sqrt_batches)",
        choices=("linear", "sqrt", "none", "linear_batches", "sqrt_batches"),
    )
    lr_groups: tuple[str, ...] = flag(
        (), "factors of the learning rate by variable scope, as mlp:0.1,linear:2", "scope:factor"
    )
    seed: int = flag(1, "of the data's order, the dense variables and new embedding rows", minimum=0)
    accumulation_steps: int = flag(
        1, "batches of an optimizer step, which is what every other flag calls a step", "batches", minimum=1
    )
    clip_norm: float = flag(
        0.0, "largest global norm of the dense gradients, and of the rows' of a worker; 0 for any", minimum=0.0
    )
    l2: float = flag(0.0, "adds l2 / 2 * sum w^2 of the dense kernels to the loss", minimum=0.0)
    positive_weight: float | str = flag(
        1.0,
        "what the loss of a positive example is multiplied by; balanced: negative over positive examples of the "
        "training data",
        choices=("balanced",),
        minimum=0.0,
    )
    negative_sampling: float | None = flag(
        None,
        "share of the negative examples to train on, all by default; kept with checkpoints, whose predictions are "
        "calibrated for it",
        "share",
        minimum=0.0,
    )
