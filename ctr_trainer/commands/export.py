"""Writes a checkpoint as a SavedModel of stock operations that takes the features' raw values."""

import json

from ctr_trainer.commands.paths import require_model
from ctr_trainer.flags import (
    CheckpointFlags,
    DataFlags,
    EmbeddingFlags,
    ExportFlags,
    ModelFlags,
    RunFlags,
    TrainingFlags,
    require,
)

GROUPS = (ModelFlags, DataFlags, TrainingFlags, EmbeddingFlags, CheckpointFlags, RunFlags, ExportFlags)
GIVEN = True
EXAMPLES = (
    "python -m ctr_trainer export --flagfile=configs/demo.flags --export_dir=serving/ctr/1",
    "python -m ctr_trainer export --flagfile=configs/demo.flags --export_dir=serving/ctr/2 --checkpoint=best",
)


def run(given, model, data, training, embedding, checkpoint, run_flags, export):
    """Exports; the last line printed is one JSON object."""
    require(export, "export_dir")
    require_model(model)

    from ctr_trainer.commands.as_trained import as_trained
    from ctr_trainer.commands.experiment import make_estimator
    from ctr_trainer.ranks import distributed

    distributed.init(run_flags.stall_timeout)
    model, training, embedding = as_trained(given, model, training, embedding)
    estimator = make_estimator(model, data, training, embedding, run_flags)
    found = estimator.find_checkpoint(checkpoint.checkpoint)
    if distributed.is_chief():
        print(json.dumps({"export_dir": estimator.export_to(export.export_dir, checkpoint=found)}), flush=True)
