"""The feature spec and the dense statistics of a model, as they are kept beside it."""

import logging

from ctr_trainer.estimator.finding import newest_record
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

_log = logging.getLogger(__name__)
_FILE = "features.json"
_CURE = "put a copy of this file in its place, or train into another --model_dir"


def features_path(model_dir):
    """-> the file that has them."""
    return path_of(model_dir) / _FILE


def save_features(model_dir, features):
    """Keeps the feature spec and the dense statistics beside the model, for evaluation and export."""
    values = {"spec": features.spec.to_dict(), "statistics": features.statistics}
    features_path(model_dir).write_json(values)


def load_features(model_dir):
    """-> (FeatureSpec, statistics) of the model in `model_dir`, or None.

    Where their file is gone or damaged, those that the newest checkpoint has as well.

    Raises:
      UserError: the file is empty, was cut off or altered, and no checkpoint has them.
    """
    path = features_path(model_dir)
    try:
        saved = path.read_json(_CURE)
    except UserError as error:
        saved = (newest_record(model_dir) or {}).get("features")
        if saved is None and path.exists():
            raise
        if saved is None:
            return None
        _log.warning("%s. The newest checkpoint has a copy, which is used", error)
    try:
        return FeatureSpec.from_dict(saved["spec"], f"{path}: spec"), saved["statistics"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: no feature spec and statistics of a model ({error!r}); {_CURE}") from error
