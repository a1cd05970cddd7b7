"""Flags of evaluations."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class MetricsFlags:
    """Metrics"""

    exact_auc: bool = flag(False, "AUC and AUC-PR from all scores, not from bins; 24 bytes of memory an example")
    group_by: str = flag("", "id column or single-valued feature, as user: also the AUC within its values", "column")


@dataclasses.dataclass(frozen=True)
class EvaluationFlags:
    """Evaluation while training"""

    eval_steps: int = flag(0, "between two evaluations on --eval_data; 0 makes none", "steps", minimum=0)
    eval_epochs: int = flag(
        0, "of the training data between two evaluations on --eval_data, in place of --eval_steps", "epochs", minimum=0
    )
    eval_batches: int = flag(0, "of each worker in such an evaluation; 0 takes all", "batches", minimum=0)
    best_metric: str = flag("", "keep the best checkpoint by it, as auc, logloss, gauc or auc/click; none if empty")
    best_direction: str = flag("", "which values are better, of a metric of your own", choices=("max", "min"))
    early_stopping_patience: int = flag(
        0, "evaluations without an improvement of --best_metric that end the training; 0 never", "times", minimum=0
    )
    early_stopping_min_delta: float = flag(0.0, "by how much it must be better to count as improved", minimum=0.0)

    @property
    def evaluates(self):
        """Whether there are evaluations while training."""
        return bool(self.eval_steps or self.eval_epochs)


@dataclasses.dataclass(frozen=True)
class CheckpointFlags:
    """Checkpoint"""

    checkpoint: str = flag("latest", "which is used: latest, best (of --best_metric), or a step")


@dataclasses.dataclass(frozen=True)
class SavedModelFlags:
    """Evaluation of an export"""

    saved_model: str = flag(
        "", "evaluate this SavedModel in place of a checkpoint; --eval_data is then raw data", "path"
    )
    raw_format: str = flag(
        "csv", "of that data", choices=("csv", "criteo", "movielens", "libsvm", "libffm", "parquet", "tfrecord")
    )
    max_bad_rows: int = flag(0, "rows of it that may be unreadable; each is named and counted", "rows", minimum=0)
