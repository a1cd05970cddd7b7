"""Looks at the paths that a command is given before TensorFlow is imported, which takes seconds."""

from ctr_trainer.messages.errors import UserError
from ctr_trainer.settings.by_flag import require


def require_data(path, experiment):
    """Raises UserError where there are no such data, or no such feature spec.

    Args:
      path: of --train_data or --eval_data.
      experiment: `Experiment`.
    """
    from ctr_trainer.data.dataset import FILE
    from ctr_trainer.data.listing import list_files
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
    for name in path.split(","):
        if not path_of(name).exists() and not path_of(name).matches():
            list_files(name)  # There is nothing to list, and this says so.


def require_model(model):
    """Raises UserError where --model_dir is missing or nothing was trained there."""
    from ctr_trainer.files.paths import path_of

    require(model, "model_dir")
    if not path_of(model.model_dir).is_dir():
        raise UserError(
            f"there is no checkpoint in {model.model_dir}: no such directory; train first, or mend --model_dir"
        )
