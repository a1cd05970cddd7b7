"""Trains a model on converted data, from the newest checkpoint in --model_dir on if there is one."""

import json
import logging
import os

from ctr_trainer.errors import UserError
from ctr_trainer.flags import DataFlags, EmbeddingFlags, ExportFlags, ModelFlags, RunFlags, TrainingFlags, require

GROUPS = (ModelFlags, DataFlags, TrainingFlags, EmbeddingFlags, RunFlags, ExportFlags)
EXAMPLES = (
    "./run.sh --flagfile=configs/demo.flags",
    "horovodrun -np 2 ./run.sh --flagfile=configs/movielens_deepfm.flags --max_steps=5000",
    "horovodrun -np 8 -H a:4,b:4 ./run.sh --flagfile=... --embedding_service=a:7700,b:7700 --token_file=token",
)
SUMMARY_FILE = "train_summary.json"

_log = logging.getLogger(__name__)


def run(model, data, training, embedding, run_flags, export):
    """Trains; rank 0 leaves `train_summary.json` in the model directory, and the export where one is asked for."""
    from ctr_trainer import distributed
    from ctr_trainer.commands.experiment import make_estimator, training_reader

    require(data, "train_data")
    if not data.epochs and not training.max_steps:
        raise UserError("--epochs=0 never ends by itself: give --max_steps")
    distributed.init(run_flags.stall_timeout, run_flags.pin_cores)
    estimator = make_estimator(model, data, training, embedding, run_flags)

    def input_fn(position):
        return training_reader(model, data, training, position)

    result = estimator.train(input_fn, max_steps=training.max_steps or None)
    if not distributed.is_chief():
        return
    if result:
        with open(os.path.join(model.model_dir, SUMMARY_FILE), "w") as file:
            json.dump(result, file)
        _log.info(
            "trained %d steps on %d workers: %d examples in %.1f s, %.1f examples/sec together; input waits: %.1f s",
            result["steps"],
            result["workers"],
            result["examples"],
            result["seconds"],
            result["examples_per_sec"],
            result["input_wait_seconds"],
        )
    if export.export_dir:
        _log.info("exported to %s", estimator.export_to(export.export_dir))
