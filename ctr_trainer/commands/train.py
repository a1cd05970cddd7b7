"""Trains a model on converted or raw data; resumes from the newest checkpoint in --model_dir if there is one."""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Iterator
from typing import Any

from ctr_trainer import __version__
from ctr_trainer.commands.experiment.checks import check_training, require_data, require_files, require_training
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.flags import TRAINING
from ctr_trainer.commands.reports.comparison import format_phases
from ctr_trainer.commands.reports.training_run import FLAGS_FILE, SUMMARY_FILE
from ctr_trainer.embedding.service.local_service import LocalServices
from ctr_trainer.export import directory
from ctr_trainer.ranks.notices import Placement
from ctr_trainer.settings.by_flag import by_flag, replaced, require
from ctr_trainer.settings.command_flags import ExportFlags
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.files.paths import is_local, path_of
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import tensorflow_import

GROUPS = TRAINING
MAIN = (
    *("model_dir", "model", "model_params", "embedding_dim", "hidden_units", "dropout"),
    *("train_data", "eval_data", "feature_spec", "batch_size", "epochs", "max_steps"),
    *("optimizer", "learning_rate", "embedding_optimizer", "embedding_learning_rate", "embedding_l2"),
    *("embedding_optimizer_params", "lr_schedule_params", "scale_lr", "lr_schedule", "embedding_lr_schedule", "l2"),
    *("embedding_service", "sync_steps", "accumulation_steps", "dense_sync_steps", "dense_exchange"),
    *("eval_steps", "eval_epochs", "best_metric", "early_stopping_patience", "save_checkpoints_steps", "warm_start"),
    *("next_data", "deterministic", "threads", "log_steps", "export_dir", "publish"),
)
EXAMPLES = (
    "./run.sh --flagfile=configs/demo.flags",
    "horovodrun -np 2 ./run.sh --flagfile=configs/criteo_deepfm.flags --max_steps=5000",
    "./run.sh --flagfile=configs/demo.flags --model_dir=models/best --eval_steps=500 --best_metric=auc "
    "--early_stopping_patience=3",
    "horovodrun -np 8 -H a:4,b:4 ./run.sh --flagfile=... --embedding_service=a:7700,b:7700 --token_file=token",
)

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def services_ahead(experiment: Experiment) -> Iterator[LocalServices]:
    """Yields the local services of an experiment; rank 0 starts them now if the training will use them.

    They start while TensorFlow is imported, which takes longer. This is not a collective: the environment variables of
    `horovodrun` show whether they are used. If the model directory is in a store, they start later, because its
    `Staging` first clears the directory of their logs.
    """
    config, model_dir = experiment.run.embedding, experiment.model.model_dir
    place = Placement.of_this_process()
    are_used = config.service == "auto" and place.rank == 0 and place.size > 1 and place.is_on_one_host
    services = LocalServices.of(config, model_dir)
    with contextlib.closing(services):
        if are_used and is_local(model_dir):
            services.start(os.sched_getaffinity(0))
        yield services


def run(
    given: frozenset[str],
    experiment: Experiment,
    evaluation: EvaluationConfig,
    export: ExportFlags,
) -> None:
    """Trains. In the model directory, rank 0 writes `flags.json` at the start and `train_summary.json` at the end.

    With --eval_data it evaluates at the end, and with --eval_steps or --eval_epochs also during training. With
    --export_dir it exports at the end: the best checkpoint if one is kept, else the last one. The default,
    --recipe=data, chooses the settings that the user did not give, from properties of the data.
    """
    data, model = experiment.data, experiment.model
    supposed = require_training(given, experiment, evaluation)
    if supposed.evaluates:
        require(data, "eval_data")
    require_data(data.train_data, experiment)
    if data.eval_data:
        require_files(data.eval_data)
    if export.export_dir:
        directory.refuse_others(export.export_dir)  # Checked before the training, not after it.
    with services_ahead(experiment) as services, contextlib.ExitStack() as ending:
        tensorflow_import.load()
        from ctr_trainer.checkpoint import model_directory
        from ctr_trainer.checkpoint.evaluations import without_nan
        from ctr_trainer.commands.experiment import build, data_recipe, mlflow_run
        from ctr_trainer.commands.experiment.as_trained import as_trained
        from ctr_trainer.commands.experiment.open_source import is_readable, open_source
        from ctr_trainer.estimator import run_summary
        from ctr_trainer.ranks import distributed

        def eval_input_fn() -> Any:
            return build.reader(experiment, data.eval_data, once=True)  # With the settings at the call.

        build.make_eval_spec(supposed, eval_input_fn, at_end=bool(data.eval_data))  # Raises errors early.
        build.start_workers(experiment)
        chosen, saved, about_chosen = data_recipe.decide(given, experiment, evaluation)
        experiment, evaluation = replaced(experiment, chosen), replaced(evaluation, chosen)
        if evaluation.evaluates and not data.eval_data:
            raise UserError(
                f"--eval_data is missing: the training in {model.model_dir} began with evaluations, which decide when "
                "it ends; give the same data, or continue with other data by --next_data, or use another --model_dir"
            )
        if experiment.run.embedding.service != "auto":
            services.close()
        check_training(experiment, evaluation)
        experiment = build.with_label_rates(as_trained(given, experiment))
        flags = by_flag(experiment) | by_flag(evaluation) | by_flag(export)
        tracker = None
        if experiment.log.track == "mlflow" and distributed.is_chief():
            about = flags | {"workers": distributed.size()}
            tracker = ending.enter_context(mlflow_run.MlflowRun(model.model_dir, about))
            experiment = dataclasses.replace(experiment, run=experiment.run.replace(tracker=tracker))
        eval_spec = build.make_eval_spec(evaluation, eval_input_fn, at_end=bool(data.eval_data))
        estimator = build.make_estimator(experiment, services)
        if eval_spec and distributed.broadcast_object(is_readable(data.eval_data, experiment), "eval_data"):
            eval_spec.input_fn()  # Unreadable data raises an error before the graph is built.

        if distributed.is_chief() and about_chosen:
            _log.info("%s", about_chosen)

        def train_input_fn(position: Any) -> Any:
            batches = build.training_reader(experiment, position)
            if distributed.is_chief() and batches.steps != 0:
                about = {"command": "train", "version": __version__, "workers": distributed.size(), "flags": flags}
                about |= {data_recipe.CHOSEN: saved} if saved else {}
                (path_of(model.model_dir) / FLAGS_FILE).write_json(about)
            return batches

        estimator.train(
            train_input_fn,
            max_steps=data.max_steps or None,
            evaluation=eval_spec,
            resume_from=model.resume_from or None,
            next_data=open_source(data.train_data, experiment, fitted=False).files if data.next_data else "",
        )
        result = estimator.last_training
        if result is None:
            _complete_summary(estimator)
        if distributed.is_chief():
            for line in format_phases(result) if result and result.phases else ():
                _log.info("%s", line)
            if result:
                for line in run_summary.lines(result):
                    _log.info(line)
                summary, file = result.to_json(), path_of(model.model_dir) / SUMMARY_FILE
                if not result.steps and result.evaluation and file.exists():  # Only the last evaluation was missing.
                    known = file.read_json("remove it, and run `train` again")
                    if known.get("global_step") == result.global_step:
                        summary = {**known, "evaluation": summary["evaluation"]}
                file.write_json(without_nan(summary))
                if tracker:
                    tracker.describe(result, run_summary.lines(result))
        if export.export_dir:
            checkpoint = estimator.find_checkpoint(model_directory.AUTO)  # As the command `export` does.
            # --negative_sampling may have changed after the best checkpoint, which is exported as it was trained.
            params: Any = estimator.params
            estimator.params = dataclasses.replace(params, negative_sampling=None)
            if distributed.is_chief():
                path = estimator.export_to(export.export_dir, checkpoint_path=checkpoint)
                _log.info("exported step %d to %s", checkpoint.step, path)


def _complete_summary(estimator: Any) -> None:
    """Writes what is known of a training that was killed before it wrote its summary. A collective."""
    from ctr_trainer.checkpoint.evaluations import EvaluationHistory, without_nan
    from ctr_trainer.ranks import distributed

    checkpoint, path = estimator.latest_checkpoint(), path_of(estimator.model_dir) / SUMMARY_FILE
    if checkpoint is None or not distributed.is_chief():
        return
    known = path.read_json("`train` writes it again; remove it") if path.exists() else {}
    if known.get("global_step", 0) < checkpoint.step:
        summary: dict[str, Any] = {"workers": distributed.size(), "global_step": checkpoint.step}
        for each in EvaluationHistory.load(estimator.model_dir).current:
            if each.pop("step") == checkpoint.step:
                summary["evaluation"] = {"global_step": checkpoint.step, **each}
        path.write_json(without_nan(summary))
        _log.info("the training ended at step %d without a summary; wrote what is known: %s", checkpoint.step, path)
