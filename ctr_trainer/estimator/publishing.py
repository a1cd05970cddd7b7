"""Publishes a model while it trains: from the hook of the training to the process that delivers."""

import functools
import os
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ctr_trainer.estimator.training import Training
from ctr_trainer.export.dense_tower import DenseTower
from ctr_trainer.files.paths import path_of
from ctr_trainer.files.staging import local_directory
from ctr_trainer.graph_notes.notes import params_of_this_graph
from ctr_trainer.hooks.ending_hooks import StopHook
from ctr_trainer.hooks.saving_hooks import PublishHook
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.delivery_process import DeliveryKeeper, DeliveryProcess
from ctr_trainer.publication.publisher import Publisher
from ctr_trainer.publication.spool import DIRECTORY, Spool
from ctr_trainer.ranks import distributed

tf1 = tf.compat.v1
_LOG = "publish.log"  # Below the model directory.


class NoPublishing:
    """A training that is not published, and ranks other than 0.

    Attributes:
      hooks: session hooks.
      status_lines: functions f() -> a line of the log.
    """

    hooks: list[tf1.train.SessionRunHook] = []
    status_lines: list[Callable[[], str]] = []

    def results(self) -> dict[str, Any]:
        """Returns fields of `TrainResult`."""
        return {}

    def close(self) -> None:
        """Ends what is under way, also after an error."""


class Publishing(NoPublishing):
    """Publishes from rank 0.

    Args:
      publisher: `Publisher`.
      tower: `DenseTower`.
      hook: `PublishHook`.
    """

    def __init__(self, publisher: Publisher, tower: DenseTower, hook: PublishHook) -> None:
        self._publisher, self._tower = publisher, tower
        self.hooks, self.status_lines = [hook], [publisher.status_line]

    def results(self) -> dict[str, Any]:
        return {"publication": self._publisher.results()}

    def close(self) -> None:
        self._publisher.close()
        self._tower.close()


def open_publishing(training: Training, stop: StopHook) -> NoPublishing:
    """Returns what publishes a training, `NoPublishing` without `RunConfig.publish`; in the training graph's scope.

    Raises:
      UserError: the model has no feature spec, by which a server would find its rows.
    """
    job, feed, publish = training.job, training.feed, training.job.config.publish
    if not publish.to:
        return NoPublishing()
    if not feed.inputs.fed:
        raise UserError(
            f"--publish={publish.to}: a model that is fed by a tf.data.Dataset has no feature spec, by which a server "
            "would find its rows: train it on converted data, or export it at the end with a serving_input_receiver_fn"
        )
    if not distributed.is_chief():
        return NoPublishing()
    features = feed.inputs.features
    tower = DenseTower(job.model_fn, params_of_this_graph(job.params), (features.spec, features.statistics))
    configs = [rows.config for rows in feed.embeddings.rows.values()] if feed.embeddings else []
    name = job.record.name or "model"
    spool = Spool(path_of(job.model_dir) / DIRECTORY, name, training.store, configs, publish.dtype)
    log = os.path.join(local_directory(job.model_dir), _LOG)
    cores = distributed.service_cores(1, steps_wait=False)  # On all cores it costs the demo 19%, so 5 to 14%.
    process = functools.partial(DeliveryProcess, spool.path, publish.to, publish.redis, log, cores)
    publisher = Publisher(spool, tower, publish.to, DeliveryKeeper(process), publish)
    grace_secs = job.config.grace_secs
    hook = PublishHook(publisher, tower.variables, publish.secs, lambda: stop.is_asked, grace_secs, training.clock)
    return Publishing(publisher, tower, hook)
