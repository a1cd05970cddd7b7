"""Trains and uses a model from Python: on a DataFrame, an Arrow table or files of raw data."""

import contextlib
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.experiment.checks import require_model
from ctr_trainer.commands.experiment.experiment import Experiment, ModelSettings
from ctr_trainer.commands.experiment.recipes import NAME, Facts, choices, given_values
from ctr_trainer.data.dataset import FILE, open_dataset
from ctr_trainer.data.typed import without_views
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.settings.by_flag import text_of
from ctr_trainer.settings.command_flags import TrainedModelFlags
from ctr_trainer.settings.training_configs import EvaluationConfig
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages import log_lines
from ctr_trainer.system.messages.errors import UserError

if TYPE_CHECKING:  # At run time the functions import what imports TensorFlow.
    from ctr_trainer.checkpoint.checkpoint import Checkpoint
    from ctr_trainer.data.reader import BatchReader
    from ctr_trainer.estimator import Estimator

# Tables of fewer rows are all trained on, because a tenth of them would say little about when to stop.
_HELD_OUT_ROWS = 10_000


def train(
    data: Any,
    *,
    label: str = "",
    model: str = "",
    model_dir: str | os.PathLike[str] | None = None,
    eval_data: Any = None,
    feature_spec: str | os.PathLike[str] | None = None,
    **settings: Any,
) -> "ClickModel":
    """Trains a model on raw data, with features and settings that are chosen from the data.

    Args:
      data: a DataFrame of pandas, or of another package with Arrow's `__arrow_c_stream__`; an Arrow table; or files: a
        path, pattern or URL, or a list of them, of CSV, Parquet, TFRecords, libsvm or libffm. Also a
        directory that `convert` wrote.
      label: column of the label; "" for the only column of two values that is named like a label. If `feature_spec` or
        converted data has several labels, the name of the one to predict.
      model: name of a model, such as `dcn_v2` or `lr`; `python -m ctr_trainer train --help` lists them. "" for
        `deepfm`, or `tabm` for data whose numbers say most.
      model_dir: directory of the model, which must not contain a model yet; None for a temporary directory, which is
        removed with the returned object.
      eval_data: data in any form of `data`, which decides when to stop. None holds out a random tenth of raw files, and
        of tables of 10,000 rows or more; if later clicks depend on earlier ones, give the newest rows.
      feature_spec: TOML file of the features; None drafts it from the data, as `convert --infer` does.
      settings: any flags of the command `train`, such as `epochs=3`, `hidden_units=(256, 128)` or
        `embedding_optimizer_params={"initial_accumulator": 1e-3}`.

    Raises:
      UserError: the label cannot be found, a setting is refused, or `model_dir` contains a model.

    Caveat: one process trains on all cores. For several workers, GPUs or streams, start the command under `horovodrun`.
    """
    import tensorflow  # noqa: F401, completely, before the command imports it without what a notebook may need.

    from ctr_trainer.checkpoint.checkpoint import list_checkpoints
    from ctr_trainer.commands import train as command

    own = None if model_dir is not None else tempfile.TemporaryDirectory(prefix="ctr_trainer-")
    directory = own.name if own else os.fspath(model_dir or "")
    if list_checkpoints(directory):
        raise UserError(f"model_dir={directory}: it contains a model; use load() for it, or choose another directory")
    with _directory_of_tables() as work:
        given, (experiment, evaluation, *_) = _parsed({"model_dir": directory, **settings})
        paths = _converted(data, eval_data, label, feature_spec, experiment, work)
        info = open_dataset(paths["train_data"])
        spec, own_values = info.spec, given_values(given, experiment, evaluation)
        facts = Facts(info.rows, keys=0, has_pieces=any(each.pieces for each in spec.dense))
        is_chosen = experiment.model.recipe == NAME and "model" in choices(facts, own_values)[0]
        model = model or ("" if spec.sparse or is_chosen or experiment.run.warm_start else "tabm")
        named = {"model": model} if model else {}  # Otherwise --recipe=data chooses it.
        named |= {"label": label} if label and len(spec.labels) > 1 else {}
        given, groups = _parsed({"model_dir": directory, **named, **paths, **settings})
        with log_lines.restored():
            command.run(given, *groups)
    return ClickModel(directory, own)


def load(model_dir: str | os.PathLike[str]) -> "ClickModel":
    """Opens a trained model.

    Raises:
      UserError: there is no trained model in `model_dir`.
    """
    require_model(ModelSettings(model_dir=os.fspath(model_dir)))
    return ClickModel(os.fspath(model_dir))


class ClickModel:
    """A trained model in a directory; `train` and `load` make it. Data are as in `train`, without a label to predict.

    Attributes:
      model_dir: the directory, which all commands take as --model_dir.
    """

    def __init__(self, model_dir: str, temporary: "tempfile.TemporaryDirectory[str] | None" = None) -> None:
        import tensorflow  # noqa: F401, as in `train`; each method needs it.

        self.model_dir, self._temporary = model_dir, temporary

    def __repr__(self) -> str:
        with self._opened({}) as (experiment, _, checkpoint):
            return f"ClickModel(model={experiment.model.model!r}, model_dir={self.model_dir!r}, step={checkpoint.step})"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._temporary:
            raise TypeError("a model in a temporary directory cannot be pickled: train it with a model_dir")
        return load, (self.model_dir,)

    def predict(self, data: Any, **settings: Any) -> Any:
        """Returns the probability of a click for each row, in order: a Series for a pandas DataFrame, else float32[n].

        A model of several labels returns a dict of label -> float32[n]; a `model_fn` of your own, whose predictions
        have no `probabilities`, a dict of all predictions.

        Raises:
          UserError: the data cannot be read, or `max_bad_rows` would leave rows out.
        """
        if settings.get("max_bad_rows"):
            raise UserError(
                "max_bad_rows: predict returns a value for each row, in order, so it leaves none out; remove the rows "
                "that cannot be read, or use the command `predict`, which writes ids next to the predictions"
            )
        with self._reading(data, settings, labels=False) as (estimator, checkpoint, batches):
            parts = list(estimator.predict(lambda: batches, checkpoint_path=checkpoint, yield_single_examples=False))
        columns = {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}
        split = {name.partition("/"): values for name, values in columns.items()}
        scores = {label: values for (kind, _, label), values in split.items() if kind == "probabilities"}
        if len(scores) != 1:
            return scores or columns
        (found,) = scores.values()
        if _is_pandas(data):
            return sys.modules["pandas"].Series(found, index=data.index, name="probabilities")
        return found

    def evaluate(self, data: Any, **settings: Any) -> dict[str, Any]:
        """Returns the metrics of labelled data: `auc`, `logloss`, `copc` and the others of the command `evaluate`."""
        evaluation = next(each for each in _parsed(settings)[1] if isinstance(each, EvaluationConfig))
        with self._reading(data, settings) as (estimator, checkpoint, batches):
            return estimator.evaluate(lambda: batches, checkpoint_path=checkpoint, group_by=evaluation.group_by)

    def importance(
        self, data: Any, *, repeats: int = 5, rows: int = 20_000, seed: int = 0, **settings: Any
    ) -> list[dict[str, Any]]:
        """Measures how much worse the predictions become when the values of one column are permuted among the rows.

            drop = AUC of the rows - AUC with the column permuted;  rise = log loss with it permuted - log loss

        Args:
          data: labelled rows.
          repeats: number of permutations of each column, at least 2.
          rows: the largest number of rows to measure; from more rows, this number is drawn at random.
          seed: of the draw and of the permutations.
          settings: flags, such as `batch_size`.

        Returns:
          a dict for each column that the features are made of, the largest `logloss_rise` first: `column`, `auc_drop`,
          `logloss_rise`, and `auc_drop_error` and `logloss_rise_error`, half the width of the 95% interval over the
          permutations.

        Raises:
          UserError: the model predicts several labels.

        Caveat: of two columns that say the same, each alone seems unimportant.

        Source: Breiman, Random Forests, Machine Learning 2001, section 10; the interval is of Student's t.
        """
        from ctr_trainer.commands.experiment.open_source import open_source
        from ctr_trainer.commands.importance import measure

        if repeats < 2:
            raise UserError(f"repeats={repeats}: expected at least 2, which an interval needs")
        with _directory_of_tables() as work:
            path = _files(data, work / "data.parquet")
            with self._opened({"eval_data": path, **settings}) as trained:
                return measure(open_source(path, trained[0], warns=False), trained, repeats, rows, seed)["columns"]

    def export(self, export_dir: str | os.PathLike[str]) -> str:
        """Writes a SavedModel of stock operations that takes the features' raw values; returns its path."""
        with self._opened({}) as (_, estimator, checkpoint):
            return estimator.export_to(os.fspath(export_dir), checkpoint_path=checkpoint)

    @contextlib.contextmanager
    def _reading(
        self, data: Any, settings: Mapping[str, Any], labels: bool = True
    ) -> Iterator[tuple["Estimator", "Checkpoint", "BatchReader"]]:
        """Yields (the Estimator, its checkpoint, the batches of the data in the order of the rows)."""
        from ctr_trainer.checkpoint.model_directory import load_features
        from ctr_trainer.commands.experiment.build import reader

        features = None if labels else load_features(self.model_dir)
        with _directory_of_tables() as work:
            path = _files(data, work / "data.parquet", features[0] if features else None)
            with self._opened({"eval_data": path, **settings}) as (experiment, estimator, checkpoint):
                yield estimator, checkpoint, reader(experiment, path, once=True, labels=labels)

    @contextlib.contextmanager
    def _opened(self, settings: Mapping[str, Any]) -> Iterator[tuple[Experiment, "Estimator", "Checkpoint"]]:
        """Yields (the experiment, the Estimator, its best or else last checkpoint) with settings by flag."""
        from ctr_trainer.commands.experiment.build import open_trained
        from ctr_trainer.ranks import distributed

        given, (experiment, *_) = _parsed({"model_dir": self.model_dir, **settings})
        distributed.init(experiment.workers.stall_timeout)
        with log_lines.restored():  # The commands hide TensorFlow's warnings.
            yield open_trained(given, experiment, TrainedModelFlags().checkpoint)


def _parsed(settings: Mapping[str, Any]) -> tuple[frozenset[str], list[Any]]:
    """Returns (the given flags, an instance of each group of `train`), from settings by flag."""
    arguments = []
    for name, value in settings.items():
        parts = value.items() if isinstance(value, Mapping) else [(None, value)]
        arguments += [f"--{name}={f'{key}=' if key else ''}{text_of(name, part)}" for key, part in parts]
    return flags.parse_given(flags.TRAINING, arguments)


def _converted(
    data: Any,
    eval_data: Any,
    label: str,
    feature_spec: str | os.PathLike[str] | None,
    experiment: Experiment,
    work: pathlib.Path,
) -> dict[str, str]:
    """Returns the flags of the data that `train` reads, after converting raw data in the directory `work`."""
    path = _files(data, work / "data.parquet")
    evaluated = {} if eval_data is None else {"eval_data": _files(eval_data, work / "eval_data.parquet")}
    if (path_of(path) / FILE).exists():
        if feature_spec or (label and len(open_dataset(path).spec.labels) == 1):
            raise UserError(f"data={path}: converted data has its label and its features; leave out what you gave")
        return {"train_data": path, **evaluated}
    from ctr_trainer.data.conversion.convert import convert
    from ctr_trainer.data.conversion.infer import infer
    from ctr_trainer.data.conversion.seen_format import seen_format
    from ctr_trainer.data.source import list_files

    files = path.split(",")
    format, spec_file = seen_format(list_files(files)[0].path), os.fspath(feature_spec or work / "features.toml")
    max_bad_rows = experiment.stream.max_bad_rows
    if feature_spec is None:
        infer(files, spec_file, format=format, label=label or None, max_bad_rows=max_bad_rows)
    elif label and len(FeatureSpec.load(spec_file).labels) == 1:
        raise UserError("label: the feature spec names the label; leave it out")
    is_table = path == str(work / "data.parquet")
    holds_out = eval_data is None and (not is_table or pq.read_metadata(path).num_rows >= _HELD_OUT_ROWS)
    convert(
        format,
        files,
        work / "converted",
        FeatureSpec.load(spec_file),
        split="random:0.9,0.1" if holds_out else "",
        max_bad_rows=max_bad_rows,
        progress=False,
        num_threads=experiment.run.threads,
    )
    if not holds_out:
        return {"train_data": str(work / "converted"), **evaluated}
    return {"train_data": str(work / "converted" / "train"), "eval_data": str(work / "converted" / "test")}


@contextlib.contextmanager
def _directory_of_tables() -> Iterator[pathlib.Path]:
    """Yields a directory for the files of tables, which errors of the block call by the names of the arguments."""
    with temporary_directory() as work:
        try:
            yield pathlib.Path(work)
        except UserError as error:
            if f"{work}{os.sep}" not in str(error):
                raise
            raise UserError(re.sub(rf"{re.escape(work)}{os.sep}(\w+)\.parquet", r"\1", str(error))) from None


def _files(data: Any, path: pathlib.Path, predicted: FeatureSpec | None = None) -> str:
    """Returns the comma-separated paths of the data; a table, to predict by a spec, is first written to `path`."""
    if isinstance(data, str | os.PathLike):
        return os.fspath(data)
    if isinstance(data, Sequence) and all(isinstance(each, str | os.PathLike) for each in data):
        return ",".join(map(os.fspath, data))
    table = as_table(data)
    read = {f.column for f in predicted.features} if predicted else set()
    for name in predicted.ids if predicted else ():  # Ids may be missing, as in requests of a server.
        if name not in read and name not in table.column_names:
            table = table.append_column(name, pa.nulls(len(table), pa.string()))
    pq.write_table(table, path)
    return str(path)


def as_table(data: Any) -> pa.Table:
    """Returns the Arrow table of a DataFrame, without dictionaries, which the readers of raw data do not take."""
    if _is_pandas(data):
        with refusing_mixed_columns():
            table = pa.Table.from_pandas(data, preserve_index=False)
    elif hasattr(data, "__arrow_c_stream__"):
        table = pa.table(data)
    else:
        raise UserError(f"data is {type(data).__name__}: give a DataFrame, an Arrow table, or paths of files")
    table = table.cast(pa.schema([f.with_type(without_views(f.type)) for f in table.schema]))
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in table.schema]
    return table.cast(pa.schema(fields))


@contextlib.contextmanager
def refusing_mixed_columns() -> Iterator[None]:
    """Raises UserError if the block makes columns of values that have no common Arrow type."""
    try:
        yield
    except (pa.ArrowException, ValueError) as error:
        said = "; ".join(map(str, error.args))
        raise UserError(f"data: {said}. Each column needs a name and values of one type, as by astype(str)") from None


def _is_pandas(data: Any) -> bool:
    return hasattr(data, "iloc") and hasattr(data, "columns")
