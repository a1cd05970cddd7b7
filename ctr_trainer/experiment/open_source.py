"""What --train_data and --eval_data name: converted data, or Parquet, TFRecords or CSV made elsewhere."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

from ctr_trainer.data import converted_cache, parquet
from ctr_trainer.data.dataset import FILE
from ctr_trainer.data.listing import list_files
from ctr_trainer.data.source import ConvertedData
from ctr_trainer.estimator.model_directory import load_features
from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.ranks import distributed
from ctr_trainer.system.files.outputs import refuse_overlap
from ctr_trainer.system.files.paths import is_local, path_of
from ctr_trainer.system.messages.errors import UserError

_CACHE = "data_cache"
_TEXT = (".csv", ".tsv")
_COMPRESSED = (".gz", ".bz2", ".zst")


def open_source(
    path: str, model_dir: str, feature_spec: str, labels: bool = True, fitted: bool = True
) -> ConvertedData | parquet.ForeignParquet:
    """Returns the source of a path. A collective: rank 0 looks at the files once, for all workers.

    Foreign data takes its feature spec from `feature_spec`, else from the model; its statistics from the model if there
    is one, as resuming must, else from one pass over the columns whose transforms or quantiles need them.

    Args:
      path: a directory that `convert` wrote; or Parquet, TFRecords or CSV, as a file, a directory, a URL or a pattern,
        several comma separated. TFRecords and CSV are converted on first use, to MODEL_DIR/data_cache.
      model_dir: directory of the model that is trained, evaluated or asked.
      feature_spec: a TOML file, or "".
      labels: whether they are needed; False to predict: then weights are not looked at, and a label that is missing or
        none is NaN.
      fitted: whether statistics are needed; False where only labels are looked at.

    Raises:
      UserError: nothing is there, or it does not fit the spec.
    """

    def look(advanced: Callable[[str], None]) -> dict[str, Any]:
        return _look(path, model_dir, feature_spec, labels, fitted, advanced)

    found = distributed.from_chief(look, "the_data_that_rank_0_found")
    if "converted" in found:
        return ConvertedData(found["converted"])
    spec = FeatureSpec.from_dict(found["spec"])
    if not labels:
        spec = dataclasses.replace(spec.without_labels(), labelled=found["layout"]["labelled"])
    return parquet.ForeignParquet(found["layout"], spec, found["statistics"], labels_needed=labels)


def is_readable(path: str, experiment: Experiment) -> bool:
    """Returns whether data of this path can be read before the model's own feature spec is saved, by this process."""
    if experiment.data.feature_spec or (path_of(path) / FILE).exists():
        return True
    return load_features(experiment.model.model_dir) is not None


def _look(
    path: str, model_dir: str, feature_spec: str, labels: bool, fitted: bool, advanced: Callable[[str], None]
) -> dict[str, Any]:
    """Returns what rank 0 tells the others, as JSON can hold it.

    Args:
      advanced: see `distributed.from_chief`.
    """
    model = load_features(model_dir)
    spec = FeatureSpec.load(feature_spec) if feature_spec else None
    if (path_of(path) / FILE).exists():
        converted = ConvertedData(path).spec
        if spec is not None and (spec.labels, spec.dense, spec.sparse) != (
            converted.labels,
            converted.dense,
            converted.sparse,
        ):
            raise UserError(
                f"--feature_spec={feature_spec}: {path} was converted with another spec; leave the flag out, or "
                "convert the data with this one"
            )
        return {"converted": path}
    if spec is None and model is not None:
        spec = model[0]
    if spec is None:
        return {"converted": path}  # It is not converted: opening it raises the error.
    files = path.split(",")
    if not parquet.is_parquet(list_files(files)[0].path):
        data_cache = str(path_of(model_dir) / _CACHE)
        if not is_local(data_cache):
            raise UserError(
                f"{path}: TFRecords and text are converted on first use to a directory on a disk that all workers see, "
                f"and {data_cache} is in a store: convert the data with `convert` first"
            )
        refuse_overlap(data_cache, files, [])
        files = [file.path for file in list_files(files)]
        return {
            "converted": converted_cache.converted(files, _format(files[0]), spec, data_cache, True, labels, advanced)
        }
    spec = spec if labels else spec.without_labels()
    layout = parquet.scan(files, spec, advanced=advanced)
    statistics = model[1] if model is not None else {}
    if fitted and model is None:
        statistics = parquet.fit_statistics(files, spec, advanced=advanced)
    return {"spec": spec.to_dict(), "layout": layout, "statistics": statistics}


def _format(path: str) -> str:
    """Returns the format of a file that is not Parquet, by the ending of its name."""
    stem, ending = os.path.splitext(path.lower())
    ending = os.path.splitext(stem)[1] if ending in _COMPRESSED else ending
    return "csv" if ending in _TEXT else "tfrecord"
