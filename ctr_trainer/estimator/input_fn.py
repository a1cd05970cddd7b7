"""What an `input_fn` returns, as a graph takes it."""

import dataclasses
import inspect

import tensorflow as tf

from ctr_trainer.estimator.batch_input import BatchInput
from ctr_trainer.estimator.dataset_input import DatasetInput
from ctr_trainer.estimator.given_reader import GivenReader
from ctr_trainer.estimator.saved_features import features_path, load_features
from ctr_trainer.messages.errors import UserError
from ctr_trainer.ranks import distributed


def call_input_fn(input_fn, mode, params, config, position=None):
    """Calls `input_fn` with those of `mode`, `params`, `config`, `position` and `input_context` that it declares.

    Args:
      position: where the input goes on after a restart, as `BatchReader.position_after` gave it.
    """
    workers = distributed.size()
    context = tf.distribute.InputContext(workers, distributed.rank(), workers)
    offered = {"mode": mode, "params": params, "config": config, "position": position, "input_context": context}
    declared = inspect.signature(input_fn).parameters
    return input_fn(**{name: value for name, value in offered.items() if name in declared})


def make_input(data, model_dir, trained=None, has_read=None):
    """-> the `GraphInput` of what an `input_fn` returned.

    Args:
      data: see `GivenReader` and `DatasetInput`; what has a `spec` is a reader.
      trained: (FeatureSpec, statistics) of the model; None for what `model_dir` has.
      has_read: f(), called after each batch; None for nothing.

    Raises:
      UserError: the data's feature spec is not that of the model in `model_dir`.
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
            "into another --model_dir"
        )
    names, own = [label.name for label in spec.labels], [label.name for label in reader.spec.labels]
    if len(names) != len(own) or (len(names) > 1 and names != own):
        raise UserError(
            f"the data has the labels {', '.join(own)}, and the model in {model_dir} was trained on "
            f"{', '.join(names)}; convert the data with the model's feature spec"
        )
    if any(reader.statistics.get(f.name) != statistics.get(f.name) for f in spec.sparse if f.quantiles):
        reader = reader.with_statistics(statistics)
    # Which keys have rows may be decided anew for each run.
    return BatchInput(reader, dataclasses.replace(spec, limits=reader.spec.limits), statistics, has_read)
