"""Converts the arguments of a program for `tf.estimator` to the form that this package uses."""

import dataclasses
import functools
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ctr_trainer.checkpoint.model_directory import TrainedFeatures, features_path, load_features
from ctr_trainer.estimator.batch_feed import BatchInput
from ctr_trainer.estimator.inputs import GraphInput, dataset_input
from ctr_trainer.estimator.optimize import TrainOp
from ctr_trainer.features.columns import FORM
from ctr_trainer.features.spec_changes import contradictions, novelties
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.models.params import ModelParams
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.endings.report import EndReport
from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.messages.errors import UserError, did_you_mean

_log = logging.getLogger(__name__)


def call_input_fn(input_fn: Callable[..., Any], mode: str, params: Any, config: RunConfig, position: Any = None) -> Any:
    """Calls `input_fn` with the arguments that it declares: `mode`, `params`, `config`, `position`, `input_context`.

    `position` is where the input resumes, as returned by `BatchReader.position_after`; None for the beginning.
    """
    workers = distributed.size()
    context = tf.distribute.InputContext(workers, distributed.rank(), workers)
    offered = {"mode": mode, "params": params, "config": config, "position": position, "input_context": context}
    return _called("input_fn", input_fn, (), offered)


def make_input(data: Any, model_dir: str, trained: TrainedFeatures | None = None) -> GraphInput:
    """Returns the `GraphInput` of the data that an `input_fn` returned.

    Args:
      data: see `BatchInput` and `dataset_input`; an object with a `spec` is a reader.
      trained: (FeatureSpec, statistics) of the model; None to load them from `model_dir`.

    Raises UserError: the feature spec of the data differs from the feature spec of the model in `model_dir`.
    """
    if not hasattr(data, "spec"):
        return dataset_input(data)
    reader, trained = data, trained or load_features(model_dir)
    if trained is None:
        return BatchInput(reader, reader.spec, reader.statistics)
    spec, statistics = trained
    if differing := contradictions(spec, reader.spec):
        raise UserError(
            f"the data's feature spec {reader.spec.name!r} is not the one that the model in {model_dir} was trained "
            f"with ({features_path(model_dir)}): {differing}. Convert the data with that spec, or train into another "
            "model_dir"
        )
    if distributed.is_chief() and (new := novelties(spec, reader.spec)):
        _log.info("the data's feature spec %r has, unlike the model's: %s", reader.spec.name, new)
    if statistics and any(reader.statistics.get(f.name) != statistics.get(f.name) for f in spec.sparse if f.quantiles):
        reader = reader.with_statistics({**statistics, **{n: x for n, x in reader.statistics.items() if FORM in x}})
    # Each run may have its own limits on which keys have rows, and texts of missing values, which its exports have too.
    spec = dataclasses.replace(spec, limits=reader.spec.limits, csv=reader.spec.csv)
    return BatchInput(reader, spec, statistics)


def config_of(config: RunConfig, model_dir: str | os.PathLike[str] | None) -> RunConfig:
    """Returns the settings with the model directory that was given to an Estimator or is already in the settings.

    It is None on a rank other than 0 if that rank gives none, see `TrainedModel`.
    """
    given = None if model_dir is None else str(model_dir)
    if given is None and config.model_dir is None:
        if not distributed.is_chief():
            return config
        raise UserError("an Estimator needs a model_dir, or RunConfig(model_dir=...), at least on rank 0")
    if None not in (given, config.model_dir) and given != str(config.model_dir):
        raise UserError(f"model_dir={given}, but RunConfig(model_dir={config.model_dir}): give one of them")
    return config.replace(model_dir=given or str(config.model_dir))


def model_named(name: str, params: Any) -> tuple[Callable[..., Any], ModelParams]:
    """Returns (the `model_fn` of a model's name, its `Params`); `params` are these, a dict of them, or None."""
    found = find_model(name)
    made = found.params_class(**params or {}) if params is None or isinstance(params, Mapping) else params
    return found.model_fn, dataclasses.replace(made, train_op_fn=made.train_op_fn or TrainOp())


def with_four_arguments(model_fn: Callable[..., Any], config: RunConfig) -> Callable[..., Any]:
    """Returns f(features, labels, mode, params) that calls a `model_fn` with the arguments that it declares.

    The `model_fn` may also declare `config`, the `RunConfig` of the Estimator.
    """
    declared = _parameters("model_fn", model_fn)
    by_place = len(declared) == 4 or any(p.kind == p.VAR_POSITIONAL for p in declared.values())

    @functools.wraps(model_fn)
    def adapted(features: Any, labels: Any, mode: str, params: Any) -> EstimatorSpec:
        offered = {"labels": labels, "mode": mode, "params": params, "config": config}
        if by_place and "config" not in declared:
            spec = model_fn(features, labels, mode, params)
        elif labels is not None and "labels" not in declared:
            raise UserError("the input_fn gives labels, and the model_fn does not declare the argument labels")
        else:
            spec = _called("model_fn", model_fn, (features,), offered)
        if not isinstance(spec, EstimatorSpec):
            raise UserError(
                f"model_fn returned {type(spec).__name__} for mode {mode!r}: return an EstimatorSpec, such as "
                "EstimatorSpec(mode, predictions=predictions, loss=loss, train_op=train_op)"
            )
        return spec

    return adapted


def _parameters(name: str, function: Any) -> Mapping[str, inspect.Parameter]:
    if not callable(function):
        raise UserError(f"{name} is {type(function).__name__}: expected a function; {name}=lambda: x makes one of x")
    return inspect.signature(function).parameters


def _called(name: str, function: Callable[..., Any], first: Sequence[Any], offered: Mapping[str, Any]) -> Any:
    """Calls a function of the program with `first` and those of the offered arguments that it declares."""
    declared = _parameters(name, function)
    for each in list(declared.values())[len(first) :]:
        if each.name not in offered and each.default is each.empty and each.kind in (0, 1, 3):
            raise UserError(
                f"{name} declares the argument {each.name!r}, which is not one of {', '.join(offered)}"
                f"{did_you_mean(each.name, offered)}"
            )
    return function(*first, **{key: value for key, value in offered.items() if key in declared})


def chosen_predictions(predictions: Any, keys: str | Sequence[str] | None) -> dict[str, tf.Tensor]:
    """Returns a dict of a model's predictions, limited to the names in `keys` if given."""
    named = predictions if isinstance(predictions, Mapping) else {"output": predictions}
    keys = [keys] if isinstance(keys, str) else keys
    unknown = [key for key in keys or () if key not in named]
    if unknown:
        raise UserError(f"predict_keys={','.join(unknown)}: the model predicts {', '.join(named)}")
    return {name: value for name, value in named.items() if not keys or name in keys}


def run_program(main: Callable[[], Any]) -> int:
    """Runs the main function of a program; returns the exit status for `sys.exit`.

    If a rank fails, one rank logs why the job ends. On SIGTERM or SIGINT, a training ends after the current step and
    saves a checkpoint.

    Args:
      main: f(), which does all the work of the process.
    """
    return EndReport().run(main)
