"""When a training is evaluated on the way, and what comes of it."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class MetricsConfig(Settings, title="Metrics"):
    """Which metrics an evaluation computes in addition to the usual ones; both take memory, see `ScoredExamples`."""

    exact_auc: bool = setting(
        False,
        "compute AUC and AUC-PR exactly, from all scores instead of from bins; takes 24 bytes of memory per example",
    )
    group_by: str = setting(
        "",
        "id column or single-valued feature, such as user; adds the AUC within the examples of each of its values "
        "(gauc)",
        "column",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Settings, title="Evaluation while training"):
    """When a training is evaluated on the way, and what comes of it; `EvalSpec` adds on what."""

    every_n_steps: int | None = setting(
        None,
        "steps between two evaluations on --eval_data; 0 evaluates at the end only",
        "steps",
        minimum=0,
        flag="eval_steps",
    )
    every_n_epochs: int = setting(
        0,
        "epochs between two evaluations on --eval_data, in place of --eval_steps; 0 for --eval_steps",
        "epochs",
        minimum=0,
        flag="eval_epochs",
    )
    steps: int | None = setting(
        0,
        "batches per worker in an evaluation while training; 0 takes all",
        "batches",
        minimum=0,
        flag="eval_batches",
    )
    best_metric: str | None = setting(
        "",
        "metric that selects the best checkpoint, which is kept: auc, logloss, gauc or, of one label, auc/click; empty "
        "keeps none",
    )
    best_direction: str | None = setting(
        "",
        "whether larger (max) or smaller (min) values of --best_metric are better; needed for a metric of your own",
        choices=("max", "min"),
        flag=None,
    )
    early_stopping_patience: int = setting(
        0,
        "number of evaluations without an improvement of --best_metric after which training ends; 0 has no such limit",
        "times",
        minimum=0,
    )
    early_stopping_min_delta: float = setting(
        0.0, "smallest change of --best_metric that counts as an improvement", minimum=0.0, flag=None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every_n_steps and self.every_n_epochs:
            raise self.refused("{every_n_steps} and {every_n_epochs} exclude each other: leave out one of the two")

    @property
    def evaluates(self) -> bool:
        """Whether there are evaluations while training, and not only one at its end."""
        return bool(self.every_n_steps or self.every_n_epochs)
