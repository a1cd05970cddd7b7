"""Looks at the paths that a command is given before TensorFlow is imported, which takes seconds."""

import glob
import os

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

    data, model = experiment.data, experiment.model
    if data.feature_spec:
        FeatureSpec.load(data.feature_spec)
    if os.path.exists(os.path.join(path, FILE)):
        return
    if not data.feature_spec and not os.path.isdir(model.model_dir):
        ConvertedData(path)  # It is none, and this says so.
    for name in path.split(","):
        if next(glob.iglob(name), None) is None:
            list_files(name)  # There is nothing to list, and this says so.


def require_model(model):
    """Raises UserError where --model_dir is missing or nothing was trained there."""
    require(model, "model_dir")
    if not os.path.isdir(model.model_dir):
        raise UserError(
            f"there is no checkpoint in {model.model_dir}: no such directory; train first, or mend --model_dir"
        )
