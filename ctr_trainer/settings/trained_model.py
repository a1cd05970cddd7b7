"""Flags of the commands that use a trained model."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


@dataclasses.dataclass(frozen=True)
class CheckpointFlags(Settings, title="Checkpoint"):
    """Checkpoint."""

    checkpoint: str = setting(
        "auto",
        "checkpoint to use: latest; best, by --best_metric; a step; auto: best if --recipe=data chose to keep it, else "
        "latest",
    )


@dataclasses.dataclass(frozen=True)
class SavedModelFlags(Settings, title="Evaluation of an export"):
    """Evaluation of an export."""

    saved_model: str = setting(
        "", "SavedModel to evaluate in place of a checkpoint; --eval_data is then raw data", "path"
    )
    format: str = setting(
        "csv",
        "format of the raw data that a SavedModel is evaluated on",
        choices=("csv", "criteo", "movielens", "libsvm", "libffm", "parquet", "tfrecord"),
    )
    max_bad_rows: int = setting(
        0,
        "number of unreadable rows of the raw data that are left out and logged before the command ends with an error",
        "rows",
        minimum=0,
    )


@dataclasses.dataclass(frozen=True)
class ExportFlags(Settings, title="Export"):
    """Export."""

    export_dir: str = setting(
        "", "directory, or its URL, of the SavedModel to write; `train` writes it at its end", "path"
    )
    export_rows: str = setting(
        "all",
        "embedding rows in the SavedModel. all: the SavedModel predicts from raw features; none: it has the dense "
        "tower alone, which takes rows as inputs",
        choices=("all", "none"),
    )


@dataclasses.dataclass(frozen=True)
class PredictFlags(Settings, title="Predict"):
    """Predict."""

    output: str = setting(
        "",
        "Parquet file, or its URL, to write predictions to; with several workers, rank r writes part r next to it",
        "path",
    )
