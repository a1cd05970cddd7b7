"""Opens the publication of a training, an extension of it (see `estimator.step`), and writes its dense tower."""

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import numpy as np
import tensorflow as tf
import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.estimator.training import Training
from ctr_trainer.export import saved_model
from ctr_trainer.export.raw_inputs import inputs_of
from ctr_trainer.export.saved_model import TrainedFeatures
from ctr_trainer.live.publication.delivery import DeliverySupervisor, start_delivery
from ctr_trainer.live.publication.publisher import Publisher
from ctr_trainer.live.publication.spool import DIRECTORY, Spool
from ctr_trainer.models.params import params_of_training
from ctr_trainer.ranks import distributed
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.files.staging import local_directory
from ctr_trainer.system.files.temporary import temporary_directory
from ctr_trainer.system.messages.errors import UserError

_LOG = "publish.log"  # In the model directory.
_VARIABLES = "variables"


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
            self.variables = saved_model.write_tower(draft, model_fn, params, trained_features)
            self.inputs = inputs_of(draft, trained_features[0])
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
            file.write_bytes(content)
        saved_model.write_spec(path, *self._trained_features, self._new_keys.in_training)


def open_publishing(training: Training, is_stopping: Callable[[], bool]) -> Publisher | None:
    """Returns the publisher of a training whose graph is the default graph; None on ranks other than 0.

    `is_stopping`: f() -> whether a signal has asked the training to end.

    Raises UserError: the model has no feature spec, which a server needs to look up its rows; or its predictions have a
    variable that its training does not have.
    """
    job, feed, inputs = training.job, training.feed, training.model.inputs
    config, embeddings, features = job.config.publish, feed.embeddings, cast(Any, inputs.features)
    if not inputs.fed:
        raise UserError(
            f"publish={config.to}: a model that is fed by a tf.data.Dataset has no feature spec, which a server needs "
            "to look up rows: train it on converted data, or export it after training with a serving_input_receiver_fn"
        )
    if not distributed.is_chief():
        return None
    trained_features = (features.spec, features.statistics)
    tower = DenseTower(job.model_fn, params_of_training(job.params), trained_features, feed.new_keys)
    spool = Spool(
        path_of(job.model_dir) / DIRECTORY,
        job.record.name or "model",
        training.store.publish,
        [rows.config for rows in embeddings.rows.values()] if embeddings else [],
        config.dtype,
        feed.stream_state,
        tower.inputs,
        config.change_inputs,
    )

    def prepare() -> Callable[[], bool]:
        # A deterministic training changes no row by the clock. With several workers, another worker may be about to
        # update a row, so rows of a dense optimizer catch up on missed steps only at checkpoints and evaluations, for
        # which all workers meet.
        if embeddings and not job.config.deterministic:
            if distributed.size() == 1:
                embeddings.catch_up()
            embeddings.syncs.sync()
        return lambda: bool(embeddings and embeddings.syncs.is_busy)

    log = os.path.join(local_directory(job.model_dir), _LOG)
    cores = distributed.service_cores(1, steps_wait=False)  # The demo loses 5 to 14% of its speed; 19% on all cores.
    start = functools.partial(start_delivery, spool.path, config.to, config.redis, log, cores)
    return Publisher(
        config=config,
        spool=spool,
        variables=trained_variables(tower.variables),
        write_tower=tower.write,
        delivery=DeliverySupervisor(start),
        clock=training.clock,
        is_stopping=is_stopping,
        grace_secs=job.config.grace_secs,
        prepare=prepare,
    )


def trained_variables(names: Iterable[str]) -> dict[str, tf1.Variable]:
    """Returns the variables of the default graph with these names. Raises UserError: there is no such variable."""
    found = {variable.op.name: variable for variable in tf1.global_variables()}
    missing = sorted(set(names) - found.keys())
    if missing:
        raise UserError(
            f"publish: the model predicts with the variable {missing[0]}, which its training does not have; have "
            "model_fn make the same variables in both modes"
        )
    return {name: found[name] for name in names}
