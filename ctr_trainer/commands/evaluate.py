"""Computes a checkpoint's metrics on --eval_data: prints them as a table, and last as one JSON object.

With --saved_model=DIR those of an export, as it would be served; since it takes the features' raw values, which
converted data do not have, --eval_data then names raw files as `convert --input` does.

--output=FILE.json writes them with the reliability table: by decile of the predictions, what was predicted and what
happened. Scores of single examples, each with its label, are what `predict` writes.
"""

import json

from ctr_trainer.commands.paths import require_data, require_model
from ctr_trainer.files import durable_file, outputs
from ctr_trainer.flags import (
    CheckpointFlags,
    DataFlags,
    EmbeddingFlags,
    MetricsFlags,
    ModelFlags,
    PredictFlags,
    RunFlags,
    SavedModelFlags,
    TrainingFlags,
    require,
)
from ctr_trainer.messages.errors import UserError

GROUPS = (
    ModelFlags,
    DataFlags,
    TrainingFlags,
    EmbeddingFlags,
    MetricsFlags,
    CheckpointFlags,
    SavedModelFlags,
    RunFlags,
    PredictFlags,
)
GIVEN = True
EXAMPLES = (
    "python -m ctr_trainer evaluate --model_dir=demo/model --eval_data=demo/data/test",
    "horovodrun -np 2 python -m ctr_trainer evaluate --flagfile=configs/demo.flags --eval_data=other/test",
    "python -m ctr_trainer evaluate --flagfile=configs/demo.flags --checkpoint=best --group_by=user --output=best.json",
    "python -m ctr_trainer evaluate --saved_model=serving/ctr/1 --eval_data='logs/day_7.csv'",
)

_MARK = {"ctr_trainer": "evaluation"}


def run(given, model, data, training, embedding, metrics, checkpoint, export, run_flags, output):
    """Evaluates; rank 0 prints."""
    require(data, "eval_data")
    if not export.saved_model:
        require_model(model)
        require_data(data.eval_data, data, model)
    if output.output and not output.output.endswith(".json"):
        raise UserError(f"--output={output.output}: evaluate writes JSON; name a FILE.json, or leave it out: --output=")

    from ctr_trainer.ranks import distributed

    distributed.init(run_flags.stall_timeout, run_flags.pin_cores)
    if output.output and distributed.is_chief():
        sources = data.eval_data.split(",")
        outputs.refuse_overlap(output.output, sources, sources)
        outputs.refuse_foreign_file(output.output, _is_ours, "evaluate")
    if export.saved_model:
        results = _of_export(data, metrics, export, run_flags)
    else:
        results = _of_checkpoint(given, model, data, training, embedding, metrics, checkpoint, run_flags)
    if distributed.is_chief():
        _show(results, output.output)


def _is_ours(path):
    """-> whether a file is what this command wrote."""
    try:
        return durable_file.read_json(path, "").items() >= _MARK.items()
    except UserError:
        return False


def _of_checkpoint(given, model, data, training, embedding, metrics, checkpoint, run_flags):
    from ctr_trainer.commands.as_trained import as_trained
    from ctr_trainer.commands.experiment import make_estimator, metrics_config, progress, reader

    model, training, embedding = as_trained(given, model, training, embedding)
    estimator = make_estimator(model, data, training, embedding, run_flags)
    found = estimator.find_checkpoint(checkpoint.checkpoint)
    batches = reader(data.eval_data, model, data, training, once=True)
    return estimator.evaluate(
        lambda: batches, hooks=progress("evaluating", batches), checkpoint=found, metrics=metrics_config(metrics)
    )


def _of_export(data, metrics, export, run_flags):
    from ctr_trainer.commands.experiment import metrics_config
    from ctr_trainer.export.saved_model_evaluation import evaluate_saved_model

    return evaluate_saved_model(
        export.saved_model,
        export.raw_format,
        data.eval_data.split(","),
        data.batch_size,
        metrics_config(metrics),
        run_flags.threads,
        export.max_bad_rows,
    )


def _show(results, output):
    from ctr_trainer.estimator.evaluation_history import without_nan
    from ctr_trainer.report.metrics_table import format_metrics

    results = without_nan(results)
    if output:
        durable_file.write_json(output, _MARK | results)
    print(format_metrics(results))
    print(json.dumps({k: v for k, v in results.items() if not k.startswith("reliability")}), flush=True)
