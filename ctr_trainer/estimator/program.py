"""What programs for `tf.estimator` give an Estimator, in the form that this package works with."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ctr_trainer.estimator.batch_feed import BatchInput
from ctr_trainer.estimator.checkpoint import Checkpoint
from ctr_trainer.estimator.feed import DatasetInput, GraphInput
from ctr_trainer.estimator.given_reader import GivenReader
from ctr_trainer.estimator.model_directory import TrainedFeatures, features_path, load_features
from ctr_trainer.ranks import distributed, last_words
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.messages.errors import UserError


def call_input_fn(input_fn: Callable[..., Any], mode: str, params: Any, config: RunConfig, position: Any = None) -> Any:
    """Calls `input_fn` with the arguments among `mode`, `params`, `config`, `position` and `input_context` it declares.

    Args:
      input_fn: f(...) of any of these arguments; returns the data.
      mode, params, config: see `Estimator`.
      position: where the input resumes after a restart, as `BatchReader.position_after` gave it; None for the start.
    """
    workers = distributed.size()
    context = tf.distribute.InputContext(workers, distributed.rank(), workers)
    offered = {"mode": mode, "params": params, "config": config, "position": position, "input_context": context}
    declared = inspect.signature(input_fn).parameters
    return input_fn(**{name: value for name, value in offered.items() if name in declared})


def make_input(
    data: Any,
    model_dir: str,
    trained: TrainedFeatures | None = None,
    has_read: Callable[[], None] | None = None,
) -> GraphInput:
    """Returns the `GraphInput` of what an `input_fn` returned.

    Args:
      data: see `GivenReader` and `DatasetInput`; what has a `spec` is a reader.
      model_dir: directory of the model.
      trained: (FeatureSpec, statistics) of the model; None to load them from `model_dir`.
      has_read: f(), called after each batch; None for nothing.

    Raises:
      UserError: the feature spec of the data differs from the feature spec of the model in `model_dir`.
    """
    if not hasattr(data, "spec"):
        return DatasetInput(data, has_read)
    reader, trained = GivenReader(data), trained or load_features(model_dir)
    if trained is None:
        return BatchInput(reader, reader.spec, reader.statistics, has_read)
    spec, statistics = trained
    if (spec.dense, spec.sparse) != (reader.spec.dense, reader.spec.sparse):
        raise UserError(
            f"the data's feature spec {reader.spec.name!r} has other features than the one that the model in "
            f"{model_dir} was trained with ({features_path(model_dir)}); convert the data with that spec, or train "
            "into another model_dir"
        )
    names, own = [label.name for label in spec.labels], [label.name for label in reader.spec.labels]
    if len(names) != len(own) or (len(names) > 1 and names != own):
        raise UserError(
            f"the data has the labels {', '.join(own)}, and the model in {model_dir} was trained on "
            f"{', '.join(names)}; convert the data with the model's feature spec"
        )
    if statistics and any(reader.statistics.get(f.name) != statistics.get(f.name) for f in spec.sparse if f.quantiles):
        reader = reader.with_statistics(statistics)
    # Each run may have its own limits on which keys have rows.
    return BatchInput(reader, dataclasses.replace(spec, limits=reader.spec.limits), statistics, has_read)


def config_of(config: RunConfig, model_dir: str | None) -> RunConfig:
    """Returns the settings with the model directory that an Estimator is given.

    Raises:
      UserError: there is no model directory, or there are two.
    """
    model_dir = None if model_dir is None else str(model_dir)
    if model_dir is None and config.model_dir is None:
        raise UserError("an Estimator needs a model_dir, or RunConfig(model_dir=...): all ranks need the same one")
    if None not in (model_dir, config.model_dir) and model_dir != str(config.model_dir):
        raise UserError(f"model_dir={model_dir}, but RunConfig(model_dir={config.model_dir}): give one of them")
    return config.replace(model_dir=model_dir or str(config.model_dir))


def with_four_arguments(model_fn: Callable[..., Any], config: RunConfig) -> Callable[..., Any]:
    """Returns f(features, labels, mode, params) that calls a `model_fn` with those arguments that it declares.

    Args:
      model_fn: f(features, ...) with any of `labels`, `mode`, `params` and `config`.
      config: the Estimator's.
    """
    declared = inspect.signature(model_fn).parameters
    if "config" not in declared and (len(declared) == 4 or any(p.kind == p.VAR_POSITIONAL for p in declared.values())):
        return model_fn

    @functools.wraps(model_fn)
    def adapted(features: Any, labels: Any, mode: str, params: Any) -> Any:
        offered = {"labels": labels, "mode": mode, "params": params, "config": config}
        if labels is not None and "labels" not in declared:
            raise UserError("the input_fn gives labels, and the model_fn does not declare the argument labels")
        return model_fn(features, **{name: value for name, value in offered.items() if name in declared})

    return adapted


def chosen_predictions(predictions: Any, keys: str | Sequence[str] | None) -> dict[str, tf.Tensor]:
    """Returns a model's predictions by name, only the named ones if `keys` is given.

    Raises:
      UserError: there is no prediction of such a name.
    """
    named = predictions if isinstance(predictions, Mapping) else {"output": predictions}
    keys = [keys] if isinstance(keys, str) else keys
    unknown = [key for key in keys or () if key not in named]
    if unknown:
        raise UserError(f"predict_keys={','.join(unknown)}: the model predicts {', '.join(named)}")
    return {name: value for name, value in named.items() if not keys or name in keys}


def variables_of(checkpoint: Checkpoint) -> Any:
    """Returns the `tf.train.CheckpointReader` of a checkpoint's dense variables."""
    with checkpoint.with_local_dense() as found:
        return tf.train.load_checkpoint(found.dense_prefix)


def run_program(main: Callable[[], Any]) -> int:
    """Runs the main function of a program; returns the exit status for `sys.exit`.

    If a rank fails, one rank logs why the job ends. On SIGTERM or SIGINT a training ends after the current step, with a
    checkpoint.

    Args:
      main: f(), the whole work of the process.
    """
    return last_words.of_this_process().run(main)
