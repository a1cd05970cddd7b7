"""Flags of what the commands write beside checkpoints."""

import dataclasses

from ctr_trainer.flags.define import flag


@dataclasses.dataclass(frozen=True)
class ExportFlags:
    """Export"""

    export_dir: str = flag("", "where a SavedModel is written; `train` writes it at its end", "path")


@dataclasses.dataclass(frozen=True)
class PredictFlags:
    """Predict"""

    output: str = flag("", "Parquet file of the predictions; rank r of several writes part r beside it", "path")
