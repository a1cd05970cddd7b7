"""Flags of the commands that use a trained model."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class CheckpointFlags(Settings, title="Checkpoint"):
    """Checkpoint."""

    checkpoint: str = setting(
        "auto",
        "checkpoint to use: latest, best (of --best_metric), a step, or auto: best if --recipe=data has chosen to keep "
        "it, else latest",
    )


@dataclasses.dataclass(frozen=True)
class SavedModelFlags(Settings, title="Evaluation of an export"):
    """Evaluation of an export."""

    saved_model: str = setting(
        "", "evaluate this SavedModel in place of a checkpoint; --eval_data is then raw data", "path"
    )
    format: str = setting(
        "csv",
        "format of the raw data",
        choices=("csv", "criteo", "movielens", "libsvm", "libffm", "parquet", "tfrecord"),
    )
    max_bad_rows: int = setting(
        0, "rows of the raw data that may be unreadable; each is named and counted", "rows", minimum=0
    )


@dataclasses.dataclass(frozen=True)
class ExportFlags(Settings, title="Export"):
    """Export."""

    export_dir: str = setting(
        "", "directory, or its URL, where a SavedModel is written; `train` writes it at its end", "path"
    )
    export_rows: str = setting(
        "all",
        "embedding rows in the SavedModel; none: the dense tower alone, which takes rows as inputs",
        choices=("all", "none"),
    )


@dataclasses.dataclass(frozen=True)
class PredictFlags(Settings, title="Predict"):
    """Predict."""

    output: str = setting(
        "", "Parquet file of the predictions, or its URL; rank r of several writes part r next to it", "path"
    )
