"""Writes a checkpoint as a SavedModel of stock operations that takes the features' raw values."""

import json

from ctr_trainer.commands.experiment.checks import require_model
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.flags import OF_MODELS
from ctr_trainer.settings.by_flag import alike, require
from ctr_trainer.settings.command_flags import ExportFlags, TrainedModelFlags
from ctr_trainer.system.processes import tensorflow_import

GROUPS = (Experiment, ExportFlags, TrainedModelFlags)
TAKES = (*OF_MODELS, "export_dir", "export_rows")
EXAMPLES = (
    "python -m ctr_trainer export --flagfile=configs/demo.flags --export_dir=serving/ctr/1",
    "python -m ctr_trainer export --flagfile=configs/demo.flags --export_dir=serving/ctr/2",
    "python -m ctr_trainer export --flagfile=configs/demo.flags --export_dir=serving/tower/1 --export_rows=none",
)


def run(given: frozenset[str], experiment: Experiment, export: ExportFlags, use: TrainedModelFlags) -> None:
    """Exports. The last line of the output is a JSON object."""
    require(export, "export_dir")
    require_model(experiment.model)

    tensorflow_import.load()
    from ctr_trainer.commands.experiment.build import open_trained
    from ctr_trainer.ranks import distributed

    distributed.init(experiment.workers.stall_timeout, flags=alike(experiment))
    _, estimator, checkpoint = open_trained(given, experiment, use.checkpoint)
    if distributed.is_chief():
        path = estimator.export_to(export.export_dir, checkpoint_path=checkpoint, rows=use.export_rows)
        print(json.dumps({"export_dir": path, "global_step": checkpoint.step}), flush=True)
