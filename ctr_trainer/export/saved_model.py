"""Writes trained models as SavedModels that any TensorFlow Serving can load."""

import collections
import json
import logging
import os
import pathlib
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tqdm

from ctr_trainer.checkpoint.checkpoint import Checkpoint
from ctr_trainer.checkpoint.model_directory import refusing_other_variables
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.export import directory
from ctr_trainer.export.exported_table import ExportedTable, KeyIndex, TableSaver
from ctr_trainer.export.ranking import NotRankable, RankedRows, RankedValues, ranking_signatures
from ctr_trainer.export.raw_keys import SIGNATURE, RawKeys, key_outputs
from ctr_trainer.export.receivers import ExportedFeatures, RowInputs
from ctr_trainer.export.signatures import signature_defs
from ctr_trainer.export.warmup import write_warmup
from ctr_trainer.features.columns import NEW_KEYS, Statistics
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.tensors import Features
from ctr_trainer.models.estimator_spec import ModeKeys
from ctr_trainer.models.params import params_as_trained
from ctr_trainer.system.files.paths import Advanced, path_of
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)
# TensorFlow Serving does not read `assets.extra`.
_SPEC = ("assets.extra", "feature_spec.json")
_FIGURES = ("assets.extra", "features.json")

ROWS = ("all", "none")
_T = TypeVar("_T")
TrainedFeatures = tuple[FeatureSpec, Statistics | None]


def export_saved_model(
    path: str,
    model_fn: Callable[..., Any],
    params: Any,
    checkpoint: Checkpoint,
    trained_features: TrainedFeatures | None,
    serving_input_receiver_fn: Callable[[], Any] | None = None,
    rows: str = "all",
    assets_extra: Mapping[str, str] | None = None,
    advanced: Advanced = lambda text: None,
) -> str:
    """Writes the SavedModel. An earlier export at `path` is replaced once the new one is complete.

    The signature `serving_default` takes the raw values of the columns that the model reads (see
    `receivers.ExportedFeatures`) and returns the model's predictions. If `rows` is `none`, it takes rows instead of
    sparse features (see `RowInputs`), and the signature `keys` turns raw values into the keys of these rows (see
    `raw_keys.key_outputs`). The signature `ranking` scores one context with many candidates, see `ranking`.

    The keys of all tables and their index take about 25 bytes of memory per row. Rows are read and written in pieces.

    `path` may be a URL; the absolute path is returned. `trained_features` may be None with a
    `serving_input_receiver_fn`, see `Estimator.export_saved_model`. `assets_extra` are files to copy, by their path in
    `assets.extra`. `advanced` is called with a text after each block of rows. Raises UserError if `path` holds files
    that no export wrote, or if the model was trained with another setting than one in `params`.
    """
    path = str(path_of(path).absolute())
    params = params_as_trained(params, checkpoint)
    own_inputs = trained_features is not None and serving_input_receiver_fn is None

    def write(ranks: bool) -> None:
        with (
            checkpoint.with_local_dense() as local,
            directory.replacing(path, advanced) as draft,
            tf.Graph().as_default(),
        ):
            features, receivers, tables = _receive(local, trained_features, serving_input_receiver_fn, rows, advanced)
            signatures = signatures_of(model_fn, params, features, receivers, tables, ranks and own_inputs)
            saver = TableSaver(local.path, local.tables, tables, advanced)
            with tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
                with refusing_other_variables(local, saver.dense_variables):
                    saver.dense.restore(session, local.dense_prefix)
                _build(draft, session, signatures, saver)
            if trained_features is not None:
                spec, statistics = trained_features
                # An evaluation of the export reads no other columns.
                spec = spec if rows == "none" else spec.of_columns(receivers)
                write_spec(draft, spec, statistics, local.model.get(NEW_KEYS, {}))
                for lookup in spec.lookup:
                    lookup.copy_to(path_of(draft) / _SPEC[0])
            if own_inputs:
                write_warmup(draft, signatures)
            for name, file in (assets_extra or {}).items():
                copy = pathlib.Path(draft, "assets.extra", name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, copy)

    _ranking_if_possible(write)
    return path


def write_tower(
    path: str, model_fn: Callable[..., Any], params: Any, trained_features: TrainedFeatures
) -> dict[str, tuple[tf.TensorShape, tf.DType]]:
    """Writes a SavedModel without rows, with arbitrary variables, into an empty or absent directory.

    Returns the shape and dtype of each variable by name.
    """

    def write(ranks: bool) -> dict[str, tuple[tf.TensorShape, tf.DType]]:
        with tf.Graph().as_default():
            inputs = RowInputs(*trained_features)
            signatures = signatures_of(model_fn, params, inputs, inputs.receivers, {}, ranks)
            with tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
                session.run(tf1.global_variables_initializer())
                _build(path, session, signatures, tf1.train.Saver())
            write_warmup(path, signatures)
            return {each.op.name: (each.shape, each.dtype.base_dtype) for each in tf1.global_variables()}

    return _ranking_if_possible(write)


def _ranking_if_possible(write: Callable[[bool], _T]) -> _T:
    """Returns write(whether to write the signature for ranking), which is possible for most models."""
    try:
        return write(True)
    except NotRankable as error:
        _log.warning("exported without the signature for ranking: %s", error)
        return write(False)


def load_spec(path: str | os.PathLike[str]) -> FeatureSpec:
    """Returns the FeatureSpec of an export; raises UserError if `export_saved_model` did not write `path`."""
    file = pathlib.Path(path, *_SPEC)
    if not file.exists():
        why = f"it has no {os.path.join(*_SPEC)}" if os.path.isdir(path) else "there is no such directory"
        raise UserError(f"{path}: expected an export of a model with a feature spec, and {why}; `export` writes one")
    return FeatureSpec.from_dict(json.loads(file.read_text()), str(file)).in_directory(path_of(file.parent))


def load_figure(path: str, figure: str) -> dict[str, Any]:
    """Returns a dict of an export's sparse feature -> its figure, such as TYPICAL; {} if it is not known."""
    figures = json.loads(pathlib.Path(path, *_FIGURES).read_text())
    return {name: each[figure] for name, each in figures.items() if each.get(figure) is not None}


def write_spec(
    path: str | os.PathLike[str], spec: FeatureSpec, statistics: Statistics | None, new_keys: Mapping[str, float]
) -> None:
    """Writes the spec and the figures of its features; `new_keys` are `NewKeys.in_training`."""
    file = pathlib.Path(path, *_SPEC)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(spec.to_dict(), indent=1))
    figures = {f.name: {**(statistics or {}).get(f.name, {}), NEW_KEYS: new_keys.get(f.name)} for f in spec.embedded}
    pathlib.Path(path, *_FIGURES).write_text(json.dumps(figures, indent=1))


def _receive(
    checkpoint: Checkpoint,
    trained_features: TrainedFeatures | None,
    serving_input_receiver_fn: Callable[[], Any] | None,
    rows: str,
    advanced: Advanced,
) -> tuple[Any, dict[str, tf.Tensor], dict[str, ExportedTable]]:
    """Returns (features, receiver tensors by name, exported tables by name); reading features adds to both dicts."""
    if serving_input_receiver_fn is not None:
        receiver = serving_input_receiver_fn()
        tensors = receiver.receiver_tensors
        return receiver.features, tensors if isinstance(tensors, dict) else {"input": tensors}, {}
    if trained_features is None:
        raise UserError(
            f"the model of {checkpoint.path} has no feature spec, because it was fed by a tf.data.Dataset: export it "
            "with a serving_input_receiver_fn"
        )
    if rows == "none":
        inputs = RowInputs(*trained_features)
        return inputs, inputs.receivers, {}
    tables = _tables(checkpoint, advanced)
    features = ExportedFeatures(*trained_features, tables)
    return features, features.receivers, tables


def signatures_of(
    model_fn: Callable[..., Any],
    params: Any,
    features: Features | Any,
    receivers: Mapping[str, tf.Tensor],
    tables: Mapping[str, ExportedTable],
    ranks: bool,
) -> dict[str, Any]:
    """Makes the graph of the predictions. Returns its SignatureDefs by name, see `signature_defs`.

    Reading features may add to `receivers`, the graph's inputs. `ranks` is whether to make the signatures for ranking.
    """
    tf1.train.get_or_create_global_step()
    spec = model_fn(features, None, ModeKeys.PREDICT, params)  # First, because it adds to `receivers`.
    signatures = signature_defs(spec, receivers)
    if isinstance(features, RowInputs):
        raw = RawKeys(features.spec, features.statistics)
        if outputs := key_outputs(raw, features.spec, receivers.keys()):
            signatures[SIGNATURE] = tf1.saved_model.predict_signature_def(raw.receivers, outputs)
    if ranks:
        of = features.spec, features.statistics
        ranked = RankedRows(*of, receivers) if isinstance(features, RowInputs) else RankedValues(*of, tables, receivers)
        signatures |= ranking_signatures(model_fn, params, ranked)
    return signatures


def _build(path: str, session: tf1.Session, signatures: Mapping[str, Any], saver: tf1.train.Saver) -> None:
    """Writes the SavedModel of the session's graph into an empty directory."""
    builder = tf1.saved_model.Builder(path)
    tags = [tf1.saved_model.tag_constants.SERVING]
    builder.add_meta_graph_and_variables(session, tags, signatures, strip_default_attrs=True, saver=saver)
    builder.save()


def _tables(checkpoint: Checkpoint, advanced: Advanced) -> dict[str, ExportedTable]:
    """Returns an `ExportedTable` of each table by name, with the checkpoint's keys; the rows are not read yet."""
    keys: dict[str, list[np.ndarray]] = collections.defaultdict(list)
    configs: dict[str, TableConfig] = {}
    with tqdm.tqdm(desc="reading keys", unit=" rows", disable=not sys.stderr.isatty()) as bar:
        for config, some, _ in snapshot.iterate(checkpoint.path, checkpoint.tables, advanced):
            configs[config.name] = config
            keys[config.name].append(some.copy())  # A view would keep the rows in memory.
            bar.update(len(some))
            advanced(f"reading the keys of {config.name}")
    return {
        name: ExportedTable(config, KeyIndex.of(np.concatenate(keys.pop(name)))) for name, config in configs.items()
    }
