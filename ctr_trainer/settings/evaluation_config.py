"""When a training is evaluated on the way, and what comes of it."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class MetricsConfig(Settings, title="Metrics"):
    """Which metrics an evaluation computes in addition to the usual ones; both take memory, see `ScoredExamples`."""

    exact_auc: bool = setting(
        False, "compute AUC and AUC-PR from all scores, not from bins; 24 bytes of memory an example"
    )
    group_by: str = setting(
        "", "id column or single-valued feature, as user: compute the AUC within its values too", "column"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Settings, title="Evaluation while training"):
    """When a training is evaluated on the way, and what comes of it; `EvalSpec` adds on what."""

    every_n_steps: int | None = setting(
        None,
        "steps between two evaluations on --eval_data; with 0 there is only the one at the end",
        "steps",
        minimum=0,
        flag="eval_steps",
    )
    every_n_epochs: int = setting(
        0,
        "epochs of the training data between two evaluations on --eval_data, in place of --eval_steps",
        "epochs",
        minimum=0,
        flag="eval_epochs",
    )
    steps: int | None = setting(
        0,
        "batches of each worker in an evaluation while training; 0 takes all",
        "batches",
        minimum=0,
        flag="eval_batches",
    )
    best_metric: str | None = setting(
        "", "metric by which the best checkpoint is kept, as auc, logloss, gauc or auc/click; none if empty"
    )
    best_direction: str | None = setting(
        "", "values of --best_metric that are better, of a metric of your own", choices=("max", "min"), flag=None
    )
    early_stopping_patience: int = setting(
        0, "evaluations without an improvement of --best_metric that end the training; 0 never", "times", minimum=0
    )
    early_stopping_min_delta: float = setting(
        0.0, "least change of --best_metric that counts as an improvement", minimum=0.0, flag=None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every_n_steps and self.every_n_epochs:
            raise self.refused("{every_n_steps} and {every_n_epochs} exclude each other: leave out one of the two")

    @property
    def evaluates(self) -> bool:
        """Whether there are evaluations while training, and not only one at its end."""
        return bool(self.every_n_steps or self.every_n_epochs)
