"""Flags of evaluations."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


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
