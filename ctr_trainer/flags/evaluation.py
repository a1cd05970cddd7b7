"""Flags of evaluations."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class EvaluationFlags(Settings, title="Evaluation while training"):
    """Evaluation while training."""

    eval_steps: int = setting(0, "steps between two evaluations on --eval_data; 0 makes none", "steps", minimum=0)
    eval_epochs: int = setting(
        0,
        "epochs of the training data between two evaluations on --eval_data, in place of --eval_steps",
        "epochs",
        minimum=0,
    )
    eval_batches: int = setting(0, "batches of each worker in such an evaluation; 0 takes all", "batches", minimum=0)
    best_metric: str = setting(
        "", "metric by which the best checkpoint is kept, as auc, logloss, gauc or auc/click; none if empty"
    )
    best_direction: str = setting(
        "", "values of --best_metric that are better, of a metric of your own", choices=("max", "min")
    )
    early_stopping_patience: int = setting(
        0, "evaluations without an improvement of --best_metric that end the training; 0 never", "times", minimum=0
    )
    early_stopping_min_delta: float = setting(
        0.0, "least change of --best_metric that counts as an improvement", minimum=0.0
    )

    @property
    def evaluates(self):
        """Whether there are evaluations while training."""
        return bool(self.eval_steps or self.eval_epochs)


@dataclasses.dataclass(frozen=True)
class CheckpointFlags(Settings, title="Checkpoint"):
    """Checkpoint."""

    checkpoint: str = setting("latest", "checkpoint to use: latest, best (of --best_metric), or a step")


@dataclasses.dataclass(frozen=True)
class SavedModelFlags(Settings, title="Evaluation of an export"):
    """Evaluation of an export."""

    saved_model: str = setting(
        "", "evaluate this SavedModel in place of a checkpoint; --eval_data is then raw data", "path"
    )
    raw_format: str = setting(
        "csv",
        "format of the raw data",
        choices=("csv", "criteo", "movielens", "libsvm", "libffm", "parquet", "tfrecord"),
    )
    max_bad_rows: int = setting(
        0, "rows of the raw data that may be unreadable; each is named and counted", "rows", minimum=0
    )
