"""Looks at the paths that a command is given before TensorFlow is imported, which takes seconds."""

from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.experiment.model_settings import ModelSettings
from ctr_trainer.messages.errors import UserError
from ctr_trainer.models.registry import require_known
from ctr_trainer.settings.by_flag import require

# Where `estimator.checkpoint` keeps checkpoints; written out here, as that module imports TensorFlow.
_CHECKPOINTS = ("checkpoints", "best")


def require_data(path: str, experiment: Experiment) -> None:
    """Raises UserError if there are no such data, or no such feature spec.

    Args:
      path: of --train_data or --eval_data.
      experiment: `Experiment`.
    """
    from ctr_trainer.data.dataset import FILE
    from ctr_trainer.data.source import ConvertedData
    from ctr_trainer.features.spec import FeatureSpec
    from ctr_trainer.files.paths import path_of

    data, model = experiment.data, experiment.model
    if data.feature_spec:
        FeatureSpec.load(data.feature_spec)
    if (path_of(path) / FILE).exists():
        return
    if not data.feature_spec and not path_of(model.model_dir).is_dir():
        ConvertedData(path)  # It is none, and this says so.
    require_files(path)


def require_files(paths: str) -> None:
    """Raises UserError if one of several paths or patterns, separated by commas, leads to no file."""
    from ctr_trainer.data.listing import list_files
    from ctr_trainer.files.paths import path_of

    for name in paths.split(","):
        if not path_of(name).exists() and not path_of(name).matches():
            list_files(name)  # There is nothing to list, and this says so.


def require_model(model: ModelSettings) -> None:
    """Raises UserError if --model_dir is missing, nothing was trained there, or there is no such --model."""
    from ctr_trainer.files.paths import path_of

    require(model, "model_dir")
    require_known(model.model)
    directory = path_of(model.model_dir)
    if not directory.is_dir():
        raise UserError(
            f"there is no checkpoint in {model.model_dir}: no such directory; train first, or mend --model_dir"
        )
    if not any((directory / name).is_dir() for name in _CHECKPOINTS):
        raise UserError(f"there is no checkpoint in {model.model_dir}; train first, with this --model_dir")
