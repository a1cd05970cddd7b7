"""Writes a checkpoint as a SavedModel of stock operations that takes the features' raw values."""

import json

from ctr_trainer.commands.experiment.checks import require_model
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.flags import OF_MODELS
from ctr_trainer.settings.by_flag import alike, require
from ctr_trainer.settings.command_flags import CheckpointFlags, ExportFlags, ExportRows
from ctr_trainer.system.processes import tensorflow_import

GROUPS = (Experiment, CheckpointFlags, ExportFlags, ExportRows)
TAKES = (*OF_MODELS, "export_dir", "export_rows")
GIVEN = True
EXAMPLES = (
    "python -m ctr_trainer export --flagfile=configs/demo.flags --export_dir=serving/ctr/1",
    "python -m ctr_trainer export --flagfile=configs/demo.flags --export_dir=serving/ctr/2",
    "python -m ctr_trainer export --flagfile=configs/demo.flags --export_dir=serving/tower/1 --export_rows=none",
)


def run(
    given: frozenset[str], experiment: Experiment, checkpoint: CheckpointFlags, export: ExportFlags, rows: ExportRows
) -> None:
    """Exports. The last line of the output is a JSON object."""
    require(export, "export_dir")
    require_model(experiment.model)

    from ctr_trainer.commands.experiment.as_trained import as_trained

    tensorflow_import.load()
    from ctr_trainer.commands.experiment.build import make_estimator
    from ctr_trainer.ranks import distributed

    distributed.init(experiment.workers.stall_timeout, flags=alike(experiment))
    estimator = make_estimator(as_trained(given, experiment))
    found = estimator.find_checkpoint(checkpoint.checkpoint)
    if distributed.is_chief():
        path = estimator.export_to(export.export_dir, checkpoint_path=found, rows=rows.export_rows)
        print(json.dumps({"export_dir": path, "global_step": found.step}), flush=True)
