"""Opens --train_data and --eval_data: converted data, foreign Parquet, TFRecords or CSV."""

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any

from ctr_trainer.checkpoint.model_directory import features_path, has_checkpoints, load_features
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.data import parquet
from ctr_trainer.data.conversion import converted_cache
from ctr_trainer.data.conversion.leakage import warn_of_leaks
from ctr_trainer.data.conversion.seen_format import seen_format
from ctr_trainer.data.dataset import FILE
from ctr_trainer.data.source import ConvertedData, list_files
from ctr_trainer.estimator.slices import number_of
from ctr_trainer.features.columns import FORM
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.spec_changes import contradictions, novelties
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.embedding_config import refused_on_disk
from ctr_trainer.system.files.lease import InUse
from ctr_trainer.system.files.paths import is_local, path_of
from ctr_trainer.system.messages.errors import UserError

CACHE = "data_cache"
_TEXT = (".csv", ".tsv")
_COMPRESSED = (".gz", ".bz2", ".zst")


def open_source(
    path: str, experiment: Experiment, labels: bool = True, fitted: bool = True, warns: bool = True, by: str = ""
) -> ConvertedData | parquet.ForeignParquet:
    """Returns the source of a path. A collective: rank 0 inspects the files once, for all workers.

    The feature spec of foreign data is the given one, else the model's. Its statistics are the model's if there is a
    model, which resuming requires; otherwise one pass over the columns whose transforms or quantiles need statistics
    computes them.

    Args:
      path: a directory that `convert` wrote; or Parquet, TFRecords or CSV, as a comma-separated list of files,
        directories, URLs or patterns. TFRecords and text are converted on first use, to MODEL_DIR/data_cache; so is
        Parquet if rows may be left out, because every epoch must have the same rows.
      labels: whether labels are required. Without, weights are ignored, and a missing or invalid label is NaN.
      fitted: whether statistics are required; False if only labels are read.
      warns: whether to warn of columns that leak the label; False for other data than that of training.
      by: a column or feature of raw data, kept as an id column unless it is looked up or a feature's numbers.

    Raises:
      UserError: the path has no data, or the data does not fit the feature spec.
    """
    look = functools.partial(_look, path, experiment, labels, fitted, warns, by)
    found = distributed.from_chief(look, "the_data_that_rank_0_found")
    if "converted" in found:
        source = ConvertedData(found["converted"])
        if "spec" in found:  # No key depends on the dims and limits, so each run may have its own.
            spec = FeatureSpec.from_dict(found["spec"])
            source.spec = dataclasses.replace(source.spec, sparse=spec.sparse, cross=spec.cross, limits=spec.limits)
        return source
    spec = FeatureSpec.from_dict(found["spec"])
    if not labels:
        spec = dataclasses.replace(spec.without_labels(), labelled=found["layout"]["labelled"])
    return parquet.ForeignParquet(found["layout"], spec, found["statistics"], labels_needed=labels)


def is_readable(path: str, experiment: Experiment) -> bool:
    """Returns whether this process can read the data at this path before the model's feature spec is saved."""
    model_dir = experiment.model.model_dir
    if (path_of(path) / FILE).exists() or has_checkpoints(model_dir):
        return True
    # A training that was lost before its first checkpoint leaves features, which the next one removes.
    return bool(experiment.data.feature_spec) and not features_path(model_dir).exists()


def _look(
    path: str, experiment: Experiment, labels: bool, fitted: bool, warns: bool, by: str, advanced: Callable[[str], None]
) -> dict[str, Any]:
    """Returns the description of the source for all ranks, as values that JSON supports."""
    model_dir, feature_spec = experiment.model.model_dir, experiment.data.feature_spec
    max_bad_rows = experiment.stream.max_bad_rows
    model = load_features(model_dir)
    spec = FeatureSpec.load(feature_spec) if feature_spec else None
    if (path_of(path) / FILE).exists():
        if spec is None:
            return {"converted": path}
        own = ConvertedData(path).spec
        if (spec.labels, spec.dense, spec.embedded, spec.files, spec.weight if own.labelled else None) != (
            *(own.labels, own.dense, own.embedded, own.files, own.weight),
        ):
            raise UserError(
                f"--feature_spec={feature_spec}: {path} was converted with another spec: "
                f"{contradictions(own, spec) or novelties(own, spec)}. Leave the flag out, or convert the data with "
                "this one"
            )
        return {"converted": path, "spec": spec.to_dict()}
    if spec is None and model is not None:
        spec = model[0]
    if spec is None:
        return {"converted": path}  # Opening it raises an error, because it is not converted.
    column = {f.name: f.column for f in spec.sparse}.get(by, by)
    if by and not number_of(spec, by) and column not in spec.looked_up:
        spec = dataclasses.replace(spec, ids=tuple(dict.fromkeys((*spec.ids, column))))
    limited = [each.table for each in spec.limits if each.max_rows]
    if limited and experiment.run.embedding.disk.table_memory:
        raise refused_on_disk(limited[0])  # Before the data is converted, which may take hours.
    files = path.split(",")
    first = list_files(files)[0].path
    is_parquet = parquet.is_parquet(first)
    if not is_parquet or max_bad_rows:
        data_cache = str(path_of(model_dir) / CACHE)
        if not is_local(data_cache):
            raise UserError(
                f"{path}: it would be converted on first use to a directory on a disk that all workers see, and "
                f"{data_cache} is in a store: convert the data with `convert` first"
            )
        format = "parquet" if is_parquet else _format(first)
        convert = functools.partial(converted_cache.converted, files, format, spec, data_cache, warns=warns)
        if not labels:
            try:  # If every row has a label, it stands next to the prediction.
                return {"converted": convert(advanced=advanced), "spec": spec.to_dict()}
            except UserError as error:
                if isinstance(error.__cause__, OSError | InUse):  # Not an error of the rows, such as a full disk.
                    raise
        path = convert(labels=labels, max_bad_rows=max_bad_rows, advanced=advanced)
        return {"converted": path, "spec": spec.to_dict()}
    spec = spec if labels else spec.without_labels()
    layout = parquet.scan(files, spec, advanced=advanced)
    statistics: dict[str, dict] = {}
    if model is not None:
        for name, figures in (model[1] or {}).items():  # How most values of this data are written is not known.
            statistics[name] = {figure: value for figure, value in figures.items() if figure != FORM}
    elif fitted:
        statistics = parquet.fit_statistics(layout, spec, advanced=advanced)
        if warns:
            warn_of_leaks(parquet.ForeignParquet(layout, spec, {}))
    return {"spec": spec.to_dict(), "layout": layout, "statistics": statistics}


def _format(path: str) -> str:
    """Returns the format of a file that is not Parquet, by its file name extension or else by its first bytes."""
    stem, ending = os.path.splitext(path.lower())
    ending = os.path.splitext(stem)[1] if ending in _COMPRESSED else ending
    if ending in _TEXT:
        return "csv"
    found = seen_format(path)
    return "tfrecord" if found == "csv" and ".tfrecord" in path.lower() else found
