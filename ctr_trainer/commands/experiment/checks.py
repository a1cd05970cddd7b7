"""Checks of an experiment's paths and settings before TensorFlow is imported, which takes seconds."""

import os

from ctr_trainer.commands.experiment.experiment import Experiment, ModelSettings
from ctr_trainer.commands.experiment.recipes import supposed
from ctr_trainer.data.input_schemes import is_stream
from ctr_trainer.models.registry import require_known
from ctr_trainer.settings.by_flag import require
from ctr_trainer.settings.train_settings import check_plateau
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError

# The directories in which `checkpoint.checkpoint` keeps checkpoints, repeated because it loads Numba's kernels.
_CHECKPOINTS = ("checkpoints", "best")


def require_data(path: str, experiment: Experiment) -> None:
    """Raises UserError if this --train_data or --eval_data has no data, or the feature spec does not exist."""
    from ctr_trainer.data.dataset import FILE
    from ctr_trainer.data.source import ConvertedData
    from ctr_trainer.features.spec import FeatureSpec

    data, model = experiment.data, experiment.model
    if data.feature_spec:
        FeatureSpec.load(data.feature_spec)
    if is_stream(path):
        _require_stream(path, experiment)
        return
    if (path_of(path) / FILE).exists():
        return
    if not data.feature_spec and not path_of(model.model_dir).is_dir():
        ConvertedData(path)  # Raises an error, because the data is not converted.
    require_files(path)


def _require_stream(url: str, experiment: Experiment) -> None:
    """Raises UserError if a stream's URL or settings are wrong, or a required package is missing."""
    from ctr_trainer.live.stream.opening import opener
    from ctr_trainer.live.stream.source import StreamAddress

    address = StreamAddress.parse(url)
    opener(address, experiment.stream.kafka_config, experiment.run.publish.redis, "ctr_trainer")
    if not experiment.data.feature_spec and not path_of(experiment.model.model_dir).is_dir():
        raise UserError(f"--train_data={url}: a stream has raw values, so give --feature_spec")
    if is_stream(experiment.data.eval_data):
        raise UserError(
            f"--eval_data={experiment.data.eval_data}: a stream has no end; give files. The log of a training from a "
            "stream has its metrics on records that it has not seen"
        )
    if experiment.params.negative_sampling not in (None, 1):
        raise UserError("--negative_sampling draws by an example's place in an epoch, which a stream does not have")


def require_files(paths: str) -> None:
    """Raises UserError if one of the comma-separated paths or patterns matches no file."""
    from ctr_trainer.data.source import list_files

    for name in paths.split(","):
        if not name or not (path_of(name).exists() or path_of(name).matches()):
            list_files(name)  # Raises an error, because there is nothing to list.


def require_model(model: ModelSettings) -> None:
    """Raises UserError if --model_dir is missing or has no trained model, or --model does not exist."""
    require(model, "model_dir")
    require_known(model.model)
    directory = path_of(model.model_dir)
    if not directory.is_dir():
        raise UserError(
            f"there is no checkpoint in {model.model_dir}: no such directory; train first, or correct --model_dir"
        )
    if not any((directory / name).is_dir() for name in _CHECKPOINTS):
        raise UserError(f"there is no checkpoint in {model.model_dir}; train first, with this --model_dir")


def require_training(given: frozenset[str], experiment: Experiment, evaluation: EvaluationConfig) -> EvaluationConfig:
    """Returns the evaluations of a training, as far as they are known before its data is read.

    Raises UserError if a required setting is missing, or if settings contradict each other.
    """
    require(experiment.data, "train_data")
    require(experiment.model, "model_dir")
    require_known(experiment.model.model)
    experiment, evaluation = supposed(given, experiment, evaluation)
    check_training(experiment, evaluation)
    return evaluation


def check_training(experiment: Experiment, evaluation: EvaluationConfig) -> None:
    """Raises UserError if settings of a training contradict each other."""
    if experiment.data.next_data and is_stream(experiment.data.train_data):
        raise UserError("--next_data is about files: a stream continues by itself, and --stream_from begins elsewhere")
    if not experiment.data.epochs and not experiment.data.max_steps:
        raise UserError("--epochs=0 never ends by itself: give --max_steps")
    if evaluation.best_metric and not (evaluation.evaluates or experiment.data.eval_data):
        raise UserError(f"--best_metric={evaluation.best_metric} needs evaluations: give --eval_data")
    if evaluation.early_stopping_patience and not evaluation.evaluates:
        raise UserError(
            f"--early_stopping_patience={evaluation.early_stopping_patience} needs evaluations while training: give "
            "--eval_steps or --eval_epochs, and --eval_data"
        )
    schedule = experiment.train.schedule
    if schedule.name == "plateau":
        check_plateau(schedule.patience, evaluation if evaluation.evaluates else None)
    if experiment.run.deterministic and os.environ.get("HOROVOD_AUTOTUNE", "0") != "0":
        raise UserError(
            "--deterministic: horovodrun --autotune has Horovod add gradients up in an order that depends on how long "
            "it takes: leave out one of the two"
        )
    if experiment.train.fp16_allreduce and experiment.run.dense_exchange != "horovod":
        raise UserError("--fp16_allreduce: an option of Horovod's exchange: give --dense_exchange=horovod as well")
