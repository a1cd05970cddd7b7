"""Publishes a model, either continuously while it trains or once from a checkpoint."""

import contextlib
import functools
import logging
import os
import sys
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tqdm
from tensorflow.core.protobuf import saved_model_pb2

from ctr_trainer.checkpoint.checkpoint import MANIFEST, Checkpoint, describe_file
from ctr_trainer.embedding.snapshot import packed_rows, snapshot
from ctr_trainer.embedding.snapshot.packed_rows import pack
from ctr_trainer.embedding.snapshot.snapshot import key_array
from ctr_trainer.embedding.snapshot.snapshot_writer import ArrowFile, arrow_file
from ctr_trainer.embedding.table.row_kernels import first_not_finite
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.estimator.periods import EverySeconds
from ctr_trainer.estimator.trained_model import TrainedModel
from ctr_trainer.estimator.training import Training
from ctr_trainer.export import saved_model
from ctr_trainer.export.ranking import NotRankable, RankedRows, ranking_signatures
from ctr_trainer.export.receivers import RowInputs
from ctr_trainer.export.saved_model import TrainedFeatures
from ctr_trainer.export.warmup import write_warmup
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.delivery import DeliveryProcess, DeliverySupervisor
from ctr_trainer.live.publication.publisher import Publisher
from ctr_trainer.live.publication.records import BASE, Publication, Record
from ctr_trainer.live.publication.spool import DIRECTORY, Spool
from ctr_trainer.live.scoring.raw_inputs import RawInputs
from ctr_trainer.models.params import params_of_training
from ctr_trainer.ranks import distributed
from ctr_trainer.ranks.meetings import StopRequest
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import Path, path_of
from ctr_trainer.system.files.staging import local_directory
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError, diverged

_log = logging.getLogger(__name__)
_VARIABLES = "variables"
_LAST_SECONDS = 600.0
_SHARE_OF_GRACE = 3
_GENERATION, _EPOCH = 1, 0
_LOG = "publish.log"  # In the model directory.


class DenseTower:
    """Writes exports without rows (`rows="none"`) in milliseconds each, because the graph is made only once.

    Attributes:
      variables: dict of variable name -> (shape, dtype) of the tower's variables, including the global step.
      inputs: see `Record`.
    """

    def __init__(
        self, model_fn: Callable[..., Any], params: Any, trained_features: TrainedFeatures, new_keys: NewKeys
    ) -> None:
        self._trained_features, self._new_keys = trained_features, new_keys
        with temporary_directory() as parent:
            draft = os.path.join(parent, "tower")
            self.variables = _export(draft, model_fn, params, trained_features)
            self.inputs = _inputs_of(draft, trained_features[0])
            names = [name for name in LocalPath(draft).files() if not name.startswith(f"{_VARIABLES}{os.sep}")]
            self._files = {name: (LocalPath(draft) / name).read_bytes() for name in names}
        self._graph = tf.Graph()
        with self._graph.as_default(), tf.device("/cpu:0"):
            self._prefix = tf1.placeholder(tf.string, [])
            self._fed = {name: tf1.placeholder(dtype, shape) for name, (shape, dtype) in self.variables.items()}
            names = list(self._fed)
            everywhere = [""] * len(names)
            self._save = tf.raw_ops.SaveV2(
                prefix=self._prefix, tensor_names=names, shape_and_slices=everywhere, tensors=list(self._fed.values())
            )
        self._session = tf1.Session(graph=self._graph, config=tf1.ConfigProto(device_count={"GPU": 0}))

    def write(self, path: str | os.PathLike[str], values: Mapping[str, np.ndarray]) -> None:
        """Writes the SavedModel with the given variable values to a local directory, which must be empty or absent."""
        prefix = os.path.join(path, _VARIABLES, _VARIABLES)
        os.makedirs(os.path.dirname(prefix), exist_ok=True)
        fed = {self._fed[name]: values[name] for name in self._fed}
        self._session.run(self._save, {self._prefix: prefix, **fed})
        for name, content in self._files.items():
            file = LocalPath(path) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as stream:
                stream.write(content)
        saved_model.write_spec(path, *self._trained_features, self._new_keys.in_training)

    def close(self) -> None:
        self._session.close()


def _export(
    path: str, model_fn: Callable[..., Any], params: Any, trained_features: TrainedFeatures, ranks: bool = True
) -> dict[str, tuple[tf.TensorShape, tf.DType]]:
    """Writes a SavedModel with arbitrary variable values. Returns a dict of variable name -> (shape, dtype)."""
    with tf.Graph().as_default():
        tf1.train.get_or_create_global_step()
        features = RowInputs(*trained_features)
        signatures = saved_model.signatures_of(model_fn, params, features, features.receivers)
        signatures |= saved_model.keys_signature(trained_features, features.receivers)
        if ranks:
            try:
                ranked = RankedRows(*trained_features, features.receivers)
                signatures |= ranking_signatures(model_fn, params, ranked)
            except NotRankable as error:
                _log.warning("exported without the signature for ranking: %s", error)
                return _export(path, model_fn, params, trained_features, ranks=False)
        variables = tf1.global_variables()
        with tf1.Session(config=tf1.ConfigProto(device_count={"GPU": 0})) as session:
            session.run(tf1.global_variables_initializer())
            saved_model.build(path, session, signatures, tf1.train.Saver())
        write_warmup(path, signatures)
        return {each.op.name: (each.shape, each.dtype.base_dtype) for each in variables}


def _inputs_of(tower: str, spec: FeatureSpec) -> dict[str, str]:
    """Returns `Record.inputs` of an exported tower."""
    found = saved_model_pb2.SavedModel.FromString((LocalPath(tower) / "saved_model.pb").read_bytes())
    names = {name for each in found.meta_graphs[0].signature_def.values() for name in each.inputs}
    return RawInputs.of(spec, names).by_name()


def write_publication(
    url: str | os.PathLike, model: TrainedModel, checkpoint: Checkpoint, config: PublishConfig
) -> Record:
    """Writes the first generation of a publication to a local path, which must be empty or absent.

    Raises:
      UserError: the checkpoint is damaged, is not finite or belongs to another model, or the publication cannot be
        written.
    """
    directory = records.generation_path(url, _GENERATION)
    dense, base = records.dense_name(_EPOCH), records.name_of(BASE, _EPOCH)
    tower = model.export_to(str(directory / dense), checkpoint=checkpoint, rows="none")
    refuse_not_finite(tower, checkpoint)
    (directory / base).mkdir(parents=True, exist_ok=True)
    configs, files = _write_rows(directory, base, checkpoint, config.dtype)
    record = Record(
        model=(checkpoint.model or {}).get("name") or "",
        generation=_GENERATION,
        epoch=_EPOCH,
        kind=BASE,
        global_step=checkpoint.step,
        time=(path_of(checkpoint.path) / MANIFEST).stamp()[1] / 1e9,
        dtype=config.dtype,
        tables=[{"config": config.to_dict()} for config in configs],
        files=files,
        dense=dense,
        dense_files=[describe_file(directory / dense, name) for name in (directory / dense).files()],
        inputs=_inputs_of(tower, saved_model.load_spec(tower)),
        change_inputs=config.change_inputs,
    )
    records.write_record(url, record)
    records.write_publication(url, Publication(record.model, _GENERATION, uuid.uuid4().hex))
    return record


def refuse_not_finite(tower: str, checkpoint: Checkpoint) -> None:
    """Raises UserError if a variable in a checkpoint's exported tower is not finite. The message names both."""
    variables = tf.train.load_checkpoint(
        os.path.join(tower, tf.saved_model.VARIABLES_DIRECTORY, tf.saved_model.VARIABLES_FILENAME)
    )
    for name, dtype in variables.get_variable_to_dtype_map().items():
        if dtype.is_floating and not np.isfinite(variables.get_tensor(name)).all():
            raise diverged(f"{checkpoint.path}: the variable {name} is not finite")


def _write_rows(
    directory: Path, base: str, checkpoint: Checkpoint, dtype: str
) -> tuple[list[TableConfig], list[dict[str, Any]]]:
    """Writes the packed rows. Returns the tables' configurations and the entries of their files for the record."""
    configs: dict[str, TableConfig] = {}
    files: dict[str, ArrowFile] = {}
    entries: list[dict[str, Any]] = []
    with (
        contextlib.ExitStack() as stack,
        tqdm.tqdm(desc="packing rows", unit=" rows", disable=not sys.stderr.isatty()) as bar,
    ):
        for config, keys, rows in snapshot.iterate(checkpoint.path, checkpoint.tables):
            table = config.name
            if (first := first_not_finite(np.ascontiguousarray(rows))) >= 0:
                raise diverged(f"{checkpoint.path}: the row of key {keys[first]} of table {table} is not finite")
            if table not in files:
                file = f"{base}/{packed_rows.file_name(table, packed_rows.ROWS)}"
                schema = packed_rows.schema(config, dtype, packed_rows.ROWS)
                configs[table], files[table] = config, stack.enter_context(arrow_file(directory, file, schema))
                entries.append(dict(file=file, table=table, kind=packed_rows.ROWS))
            values = packed_rows.value_array(pack(rows, config, dtype, _EPOCH))
            files[table].write([key_array(keys), values])
            bar.update(len(keys))
        entries = [{**entry, **files[entry["table"]].finish()} for entry in entries]
    return list(configs.values()), entries


class Publishing:
    """Publishes a model while it trains: at the start, every `secs` seconds, and at the end. Rank 0 only.

    Staleness: if the workers average their dense variables only every few steps, the tower has the variables of rank 0.

    Args:
      catch_up: f(), called before each offer, makes the rows of a dense optimizer catch up on missed steps.
      stop: whether a signal has asked the training to end, which then has `grace_secs` for it.
    """

    def __init__(
        self,
        publisher: Publisher,
        tower: DenseTower,
        secs: float,
        catch_up: Callable[[], None],
        stop: StopRequest,
        grace_secs: float,
        clock: Clock,
    ) -> None:
        self._publisher, self._tower, self._catch_up, self._clock = publisher, tower, catch_up, clock
        self._stop, self._grace_secs, self._period = stop, grace_secs, EverySeconds(secs)
        self.status_lines = [publisher.status_line]
        found = {variable.op.name: variable for variable in tf1.global_variables()}
        missing = sorted(set(tower.variables) - found.keys())
        if missing:
            raise UserError(
                f"publish: the model predicts with the variable {missing[0]}, which its training does not have; have "
                "model_fn make the same variables in both modes"
            )
        self._variables = {name: found[name] for name in tower.variables}

    def begin(self, session: tf1.Session, step: int) -> None:
        self._offer(session, step)

    def after_step(self, session: tf1.Session, step: int) -> None:
        if self._period.is_over():
            with self._clock.within("hooks"):
                self._offer(session, step)

    def finish(self, session: tf1.Session, step: int) -> None:
        self._offer(session, step)
        with self._clock.within("hooks"):
            self._publisher.finish(self._grace_secs / _SHARE_OF_GRACE if self._stop.asked else _LAST_SECONDS)

    def results(self) -> dict[str, Any]:
        return {"publication": self._publisher.results()}

    def close(self) -> None:
        """Ends the publication. Also called after an error."""
        self._publisher.close()
        self._tower.close()

    def _offer(self, session: tf1.Session, step: int) -> None:
        self._catch_up()
        self._publisher.offer(step, session.run(self._variables))
        self._period.begin()


def open_publishing(training: Training, stop: StopRequest) -> Publishing | None:
    """Returns the `Publishing` of a training; None on ranks other than 0, and if `RunConfig.publish` names no target.

    Call this while the training graph is the default graph.

    Raises:
      UserError: the model has no feature spec, which a server needs to look up its rows.
    """
    job, feed, publish = training.job, training.feed, training.job.config.publish
    if not publish.to:
        return None
    if not training.model.inputs.fed:
        raise UserError(
            f"publish={publish.to}: a model that is fed by a tf.data.Dataset has no feature spec, which a server needs "
            "to look up rows: train it on converted data, or export it after training with a serving_input_receiver_fn"
        )
    if not distributed.is_chief():
        return None
    features: Any = training.model.inputs.features
    trained_features = features.spec, features.statistics
    tower = DenseTower(job.model_fn, params_of_training(job.params), trained_features, feed.new_keys)
    configs: list[TableConfig] = [rows.config for rows in feed.embeddings.rows.values()] if feed.embeddings else []
    name = job.record.name or "model"
    place, state, change = path_of(job.model_dir) / DIRECTORY, feed.stream_state, publish.change_inputs
    spool = Spool(place, name, training.store, configs, publish.dtype, state, tower.inputs, change)
    log = os.path.join(local_directory(job.model_dir), _LOG)
    cores = distributed.service_cores(1, steps_wait=False)  # The demo loses 5 to 14% of its speed; 19% on all cores.
    process = functools.partial(DeliveryProcess, spool.path, publish.to, publish.redis, log, cores)
    publisher = Publisher(spool, tower.write, DeliverySupervisor(process), publish)
    # With several workers, another worker may be about to update a row, so rows catch up only at checkpoints and
    # evaluations, for which all workers meet.
    catches_up = feed.embeddings is not None and distributed.size() == 1
    return Publishing(
        publisher,
        tower,
        publish.secs,
        feed.embeddings.catch_up if catches_up and feed.embeddings else lambda: None,
        stop,
        job.config.grace_secs,
        training.clock,
    )
