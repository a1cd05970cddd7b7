"""What --train_data and --eval_data name: converted data, or Parquet or TFRecords made elsewhere."""

import os

from ctr_trainer import distributed
from ctr_trainer.data import foreign
from ctr_trainer.data.dataset import FILE
from ctr_trainer.data.source import ConvertedData
from ctr_trainer.errors import UserError
from ctr_trainer.estimator.inputs import load_features
from ctr_trainer.features.spec import FeatureSpec


def open_source(path, model_dir, feature_spec):
    """-> the Source of a path. A collective: rank 0 looks at the files once, for all workers.

    Foreign data takes its feature spec from `feature_spec`, else from the model; its dense statistics from the model if
    there is one, as resuming must, else from one pass over the columns whose transforms need them.

    Args:
      path: a directory that `convert` wrote; or Parquet as a file, a directory or a glob, several comma separated.
      model_dir: of the model that is trained, evaluated or asked.
      feature_spec: a TOML file, or "".

    Raises:
      UserError: nothing is there, or it does not fit the spec.
    """
    found = distributed.broadcast_object(
        _look(path, model_dir, feature_spec) if distributed.is_chief() else None, "the_data_that_rank_0_found"
    )
    if found is None:
        return ConvertedData(path)
    spec = FeatureSpec.from_dict(found["spec"])
    return foreign.ForeignParquet(found["layout"], spec, found["statistics"])


def _look(path, model_dir, feature_spec):
    """-> what rank 0 tells the others of foreign data, JSON-able; None for converted data."""
    model = load_features(model_dir)
    spec = FeatureSpec.load(feature_spec) if feature_spec else None
    if os.path.exists(os.path.join(path, FILE)):
        converted = ConvertedData(path).spec
        if spec is not None and (spec.label, spec.dense, spec.sparse) != (
            converted.label,
            converted.dense,
            converted.sparse,
        ):
            raise UserError(
                f"--feature_spec={feature_spec}: {path} was converted with another spec; leave the flag out, or "
                "convert the data with this one"
            )
        return None
    if spec is None and model is not None:
        spec = model[0]
    if spec is None:
        return None
    files = path.split(",")
    layout = foreign.scan(files, spec)
    statistics = model[1] if model is not None else foreign.dense_statistics(files, spec)
    return {"spec": spec.to_dict(), "layout": layout, "statistics": statistics}
