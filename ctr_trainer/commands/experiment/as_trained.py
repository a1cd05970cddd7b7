"""Makes the settings of a trained model the defaults of every command on its model directory."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from ctr_trainer.checkpoint import checkpoint, model_directory, model_record
from ctr_trainer.checkpoint.model_directory import load_features
from ctr_trainer.commands.experiment.experiment import Experiment, ModelSettings
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.spec_changes import contradictions
from ctr_trainer.models.params import SHARED, ModelParams
from ctr_trainer.models.registry import find_model
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.by_flag import by_flag, replaced, require, text_of
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError


def as_trained(given: frozenset[str], experiment: Experiment) -> Experiment:
    """Returns the `Experiment` with the settings of the model in the model directory instead of the defaults.

    This is a collective: rank 0 reads the directory. If it has no checkpoints, the defaults stay. The `Estimator`
    refuses settings of the flags `given` that do not fit the model; only the model's name, `embedding_dim` and the
    feature spec are checked here.

    Raises:
      UserError: --model_dir is missing, or --model, --embedding_dim or --feature_spec contradicts the trained model.
    """
    model = experiment.model
    require(model, "model_dir")
    found = distributed.broadcast_object(_look(model.model_dir) if distributed.is_chief() else None, "trained_model")
    if found is None:
        return experiment
    record, spec = found["record"], found["spec"] and FeatureSpec.from_dict(found["spec"])
    if trained := record["name"]:
        name = model_record.canonical(model.model) if "model" in given else trained
        if not model_record.is_same(name, trained):
            differing = model_record.flag("model", name), model_record.flag("model", trained)
            raise model_record.refusal(model.model_dir, [differing])
        model = dataclasses.replace(model, model=name)
    model = dataclasses.replace(
        model,
        embedding_dim=_dim(given, model, sorted({feature.dim for feature in spec.embedded}) if spec else []),
        model_params=(*_own_params(find_model(model.model).params_class, record["params"]), *model.model_params),
    )
    if spec and experiment.data.feature_spec:
        _check_spec(experiment.data.feature_spec, spec, model, "embedding_dim" in given)
    shared = {name: value for name, value in record["params"].items() if name in SHARED and name != "negative_sampling"}
    optimizer = {"optimizer": record["optimizer"]} if record["optimizer"] else {}
    recorded = {**record["rows"], **optimizer, **shared}
    values = {name: value for name, value in recorded.items() if name not in given}
    chosen = values.get("embedding_optimizer", experiment.run.embedding.row_optimizer.name)
    if chosen != recorded.get("embedding_optimizer"):  # The user gave another optimizer.
        values = {name: value for name, value in values.items() if "=" not in name}
    own = {name: value for name, value in by_flag(experiment).items() if name in given and "optimizer_params=" in name}
    values |= own  # The trained optimizer refuses those that it does not have.
    return replaced(dataclasses.replace(experiment, model=model), values)


def network_of(source: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns, by flag, the network of the model from which a warm start begins, unless it is given. A collective.

    Returns {} if the source has no record of a model, or if another model is given.
    """
    if not source:
        return {}
    found = distributed.broadcast_object(_source(source) if distributed.is_chief() else None, "warm_start_model")
    if not found or not found["name"]:
        return {}
    name, params = found["name"], found["params"]
    if not model_record.is_same(model_record.canonical(given.get("model", name)), name):
        return {}
    own = _own_params(find_model(name).params_class, params)
    flags = ("hidden_units", "activation", "batch_norm")
    layers = {flag: params[flag] for flag in flags if flag in params and flag not in given}
    return {"model": name, "model_params": (*own, *given.get("model_params", ())), **layers}


def _source(path: str) -> dict[str, Any] | None:
    """Returns the name and the params of the model of a warm start's source; None if it has no record of them."""
    is_checkpoint = (path_of(path) / checkpoint.MANIFEST).exists()
    record = checkpoint.load(path).model if is_checkpoint else model_directory.newest_model_record(path)
    return record and {"name": record["name"], "params": record["params"]}


def _look(model_dir: str) -> dict[str, Any] | None:
    """Returns the model's record for all ranks, as values that JSON supports; None if there is no record."""
    record = model_directory.newest_model_record(model_dir)
    if record is None:
        return None
    trained = load_features(model_dir)
    return {
        "record": {name: value for name, value in record.items() if name != "features"},
        "spec": trained[0].to_dict() if trained else None,
    }


def _dim(given: frozenset[str], model: ModelSettings, dims: list[int]) -> int:
    """Returns the model's `embedding_dim`, since the feature spec of the data may have another; 0 if widths differ."""
    if "embedding_dim" not in given or not model.embedding_dim or dims in ([], [model.embedding_dim]):
        return dims[0] if len(dims) == 1 else 0
    text = model_record.flag("embedding_dim", dims[0] if len(dims) == 1 else 0)
    raise model_record.refusal(model.model_dir, [(model_record.flag("embedding_dim", model.embedding_dim), text)])


def _check_spec(path: str, trained: FeatureSpec, model: ModelSettings, has_dim: bool) -> None:
    """Raises UserError if the spec that the user gave contradicts the model's; its dims may be replaced by the flag."""
    spec = FeatureSpec.load(path)
    spec = spec.with_dim(model.embedding_dim) if has_dim and model.embedding_dim else spec
    if differing := contradictions(trained, spec):
        raise UserError(
            f"--feature_spec={path}: the model in {model.model_dir} was trained with another spec: {differing}. Leave "
            "the flag out, or name another model_dir; a model that was trained with --embedding_dim needs that flag too"
        )


def _own_params(params_class: type[ModelParams], recorded: dict[str, Any]) -> list[str]:
    """Returns the model params that have no flag of their own, as values of `--model_params`."""
    return [
        f"{field.name}={text_of('model_params=', recorded[field.name])}"
        for field in dataclasses.fields(params_class)
        if field.name in recorded and field.name not in SHARED
    ]
