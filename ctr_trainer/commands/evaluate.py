"""Computes the metrics of the newest checkpoint on --eval_data; the last line printed is one JSON object."""

import json

from ctr_trainer.flags import DataFlags, EmbeddingFlags, ModelFlags, RunFlags, TrainingFlags, require

GROUPS = (ModelFlags, DataFlags, TrainingFlags, EmbeddingFlags, RunFlags)
EXAMPLES = (
    "python -m ctr_trainer evaluate --flagfile=configs/demo.flags",
    "horovodrun -np 2 python -m ctr_trainer evaluate --flagfile=configs/demo.flags --eval_data=other/test",
)


def run(model, data, training, embedding, run_flags):
    """Evaluates; rank 0 prints."""
    from ctr_trainer import distributed
    from ctr_trainer.commands.experiment import make_estimator, progress, reader

    require(data, "eval_data")
    distributed.init(run_flags.stall_timeout, run_flags.pin_cores)
    estimator = make_estimator(model, data, training, embedding, run_flags)
    batches = reader(data.eval_data, model, data, training, once=True)
    results = estimator.evaluate(lambda: batches, hooks=progress("evaluating", batches))
    if distributed.is_chief():
        print(json.dumps(results), flush=True)
