"""Computes the metrics of a checkpoint on --eval_data, and prints them as a table and as a last line of JSON.

With --saved_model=DIR it evaluates an export as a server would use it. An export needs the features' raw values, which
converted data does not have, so --eval_data then names raw files as `convert --input` does.

--output=FILE.json also writes the metrics and the reliability table: mean prediction and mean label by decile of the
predictions. `predict` writes the scores of single examples with their labels.

--by=COLUMN adds the metrics of the largest and of the worst values of a column, or of ranges of its numbers.
--against=OTHER_DATA says what has moved since the other data: missing values, label rates, distributions, new keys.
"""

import dataclasses
import json
from typing import Any

from ctr_trainer.commands.experiment.checks import require_data, require_files, require_model
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.flags import OF_DATA, OF_MODELS
from ctr_trainer.settings.by_flag import alike, require
from ctr_trainer.settings.command_flags import TrainedModelFlags
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.files import outputs
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import tensorflow_import


@dataclasses.dataclass(frozen=True)
class EvaluateFlags(Settings, title="Comparison"):
    by: str = setting("", "column or feature whose largest and worst values get metrics of their own", "column")
    against: str = setting(
        "", "other data, such as the training data; tells what has moved: values, labels, new keys", "path"
    )


GROUPS = (Experiment, EvaluationConfig, TrainedModelFlags, EvaluateFlags)
TAKES = (*OF_MODELS, *OF_DATA, "group_by", "by", "against", "saved_model", "format", "max_bad_rows", "output")
EXAMPLES = (
    "python -m ctr_trainer evaluate --model_dir=demo/model --eval_data=demo/data/test",
    "horovodrun -np 2 python -m ctr_trainer evaluate --flagfile=configs/demo.flags --eval_data=other/test",
    "python -m ctr_trainer evaluate --model_dir=demo/model --eval_data=demo/data/test --checkpoint=latest",
    "python -m ctr_trainer evaluate --flagfile=configs/demo.flags --group_by=C1 --output=metrics.json",
    "python -m ctr_trainer evaluate --model_dir=demo/model --eval_data=demo/data/test --by=I1",
    "python -m ctr_trainer evaluate --model_dir=demo/model --eval_data=demo/data/test --against=demo/data/train",
    "python -m ctr_trainer evaluate --saved_model=serving/ctr/1 --eval_data='logs/day_7.csv'",
)

_MARK = {"ctr_trainer": "evaluation"}


def run(
    given: frozenset[str],
    experiment: Experiment,
    evaluation: EvaluationConfig,
    use: TrainedModelFlags,
    flags: EvaluateFlags,
) -> None:
    """Evaluates; rank 0 prints."""
    data = experiment.data
    require(data, "eval_data")
    if use.saved_model:
        if flags.by or flags.against:
            raise UserError("--by and --against are of a model in --model_dir: leave them out, or --saved_model")
        require_files(use.saved_model)
        require_files(data.eval_data)
    else:
        require_model(experiment.model)
        for path in filter(None, (data.eval_data, flags.against)):
            require_data(path, experiment)
    if use.output and path_of(use.output).suffix != ".json":
        raise UserError(f"--output={use.output}: evaluate writes JSON; name a FILE.json, or leave it out: --output=")

    tensorflow_import.load()
    from ctr_trainer.ranks import distributed

    distributed.init(experiment.workers.stall_timeout, pin_cores=True, flags=alike(experiment))
    sources = data.eval_data.split(",")
    if use.output and distributed.is_chief():
        outputs.refuse_overlap(use.output, sources, sources)
        outputs.refuse_foreign_file(use.output, _is_ours, "evaluate")
    if use.saved_model:
        from ctr_trainer.export.saved_model_evaluation import evaluate_saved_model

        limits = data.batch_size, evaluation.group_by, experiment.run.threads, experiment.stream.max_bad_rows
        results = evaluate_saved_model(use.saved_model, use.format, sources, *limits)
    else:
        from ctr_trainer.commands.experiment.build import open_trained, reader
        from ctr_trainer.commands.experiment.open_source import open_source
        from ctr_trainer.data.moved import moved
        from ctr_trainer.estimator.slices import Slices

        experiment, estimator, checkpoint = open_trained(given, experiment, use.checkpoint)
        source = open_source(data.eval_data, experiment, warns=False, by=flags.by)
        slices = Slices(source, flags.by) if flags.by else None
        batches = reader(experiment, slices.source if slices else source, once=True)
        results = estimator.evaluate(
            lambda: batches, checkpoint_path=checkpoint, group_by=evaluation.group_by, slices=slices
        )
        if flags.against:
            other, new_keys = open_source(flags.against, experiment, warns=False), results.get("new_keys", {})
            compared = distributed.from_chief(lambda advanced: moved(source, other, new_keys), "what_has_moved")
            results = {**results, "moved": {"against": flags.against, **compared}}
    if distributed.is_chief():
        _show(results, use.output)


def _is_ours(path: Path) -> bool:
    """Returns whether this command wrote a file."""
    try:
        return path_of(path).read_json("").items() >= _MARK.items()
    except UserError:
        return False


def _show(results: dict[str, Any], output: str) -> None:
    from ctr_trainer.checkpoint.evaluations import without_nan
    from ctr_trainer.commands.reports.comparison import format_metrics

    results = without_nan(results)
    print(format_metrics(results))
    print(json.dumps({k: v for k, v in results.items() if not k.startswith("reliability")}), flush=True)
    if output:
        path_of(output).write_json(_MARK | results)
