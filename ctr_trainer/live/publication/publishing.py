"""Opens the publication of a training, which is an extension of it, see `estimator.extension`."""

import functools
import os
from collections.abc import Callable, Iterable
from typing import Any, cast

import tensorflow.compat.v1 as tf1

from ctr_trainer.estimator.training import Training
from ctr_trainer.live.publication.delivery import DeliverySupervisor, start_delivery
from ctr_trainer.live.publication.dense_tower import DenseTower
from ctr_trainer.live.publication.publisher import Publisher
from ctr_trainer.live.publication.spool import DIRECTORY, Spool
from ctr_trainer.models.params import params_of_training
from ctr_trainer.ranks import distributed
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.files.staging import local_directory
from ctr_trainer.system.messages.errors import UserError

_LOG = "publish.log"  # In the model directory.


def open_publishing(training: Training, is_stopping: Callable[[], bool]) -> Publisher | None:
    """Returns the publisher of a training whose graph is the default graph; None on ranks other than 0.

    Args:
      is_stopping: f() -> whether a signal has asked the training to end.

    Raises:
      UserError: the model has no feature spec, which a server needs to look up its rows; or its predictions have a
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
        # With several workers, another worker may be about to update a row, so rows catch up only at checkpoints and
        # evaluations, for which all workers meet.
        catch_up=embeddings.catch_up if embeddings and distributed.size() == 1 else lambda: None,
    )


def trained_variables(names: Iterable[str]) -> dict[str, tf1.Variable]:
    """Returns the variables of the default graph with these names.

    Raises:
      UserError: there is no such variable.
    """
    found = {variable.op.name: variable for variable in tf1.global_variables()}
    missing = sorted(set(names) - found.keys())
    if missing:
        raise UserError(
            f"publish: the model predicts with the variable {missing[0]}, which its training does not have; have "
            "model_fn make the same variables in both modes"
        )
    return {name: found[name] for name in names}
