"""Flags of what the commands write beside checkpoints."""

import dataclasses

from ctr_trainer.settings.setting import Settings, setting


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
        "", "Parquet file of the predictions, or its URL; rank r of several writes part r beside it", "path"
    )
