"""Publishes a training while it goes on: from its hook to the process that delivers."""

import functools
import os

from ctr_trainer.export.dense_tower import DenseTower
from ctr_trainer.files.paths import path_of
from ctr_trainer.files.staging import local_directory
from ctr_trainer.graph_notes.notes import params_of_this_graph
from ctr_trainer.hooks.publish_hook import PublishHook
from ctr_trainer.messages.errors import UserError
from ctr_trainer.publication.delivery_keeper import DeliveryKeeper
from ctr_trainer.publication.delivery_process import DeliveryProcess
from ctr_trainer.publication.publisher import Publisher
from ctr_trainer.publication.spool import DIRECTORY, Spool
from ctr_trainer.ranks import distributed

_LOG = "publish.log"  # Below the model directory.


class NoPublishing:
    """Of a training that is not published, and of all ranks but 0.

    Attributes:
      hooks: of the session.
      status_lines: list of f() -> a line of the log.
    """

    def __init__(self):
        self.hooks, self.status_lines = [], []

    def results(self):
        """-> dict for the results of the training."""
        return {}

    def close(self):
        """Ends what is under way, also after an error."""


class Publishing(NoPublishing):
    """Publishes from rank 0.

    Args:
      publisher: `Publisher`.
      tower: `DenseTower`.
      hook: `PublishHook`.
    """

    def __init__(self, publisher, tower, hook):
        self._publisher, self._tower = publisher, tower
        self.hooks, self.status_lines = [hook], [publisher.status_line]

    def results(self):
        return {"publication": self._publisher.results()}

    def close(self):
        self._publisher.close()
        self._tower.close()


def open_publishing(config, model_dir, model_fn, params, model, feed, store, stop, clock):
    """-> `Publishing` of a training with `--publish`, else `NoPublishing`; made in the training graph's scope.

    Args:
      config: `RunConfig`.
      model_dir: see `Estimator`; the spool lies there.
      model_fn, params: as for `Estimator`.
      model: name of the model.
      feed: the `Feed` of the training.
      store: of `open_store`.
      stop: `StopHook`.
      clock: `Clock` of the thread of the steps.

    Raises:
      UserError: what the model is fed with is not known to those who would ask it.
    """
    publish = config.publish
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
    tower = DenseTower(model_fn, params_of_this_graph(params), (features.spec, features.statistics))
    configs = [rows.config for rows in feed.embeddings.rows.values()] if feed.embeddings else []
    spool = Spool(path_of(model_dir) / DIRECTORY, model or "model", store, configs, publish.dtype)
    log = os.path.join(local_directory(model_dir), _LOG)
    cores = distributed.service_cores(1, steps_wait=False)  # On all cores it costs the demo 19%, so 5 to 14%.
    process = functools.partial(DeliveryProcess, spool.path, publish.to, publish.redis, log, cores)
    publisher = Publisher(spool, tower, publish.to, DeliveryKeeper(process), publish)
    hook = PublishHook(publisher, tower.variables, publish.secs, lambda: stop.is_asked, config.grace_secs, clock)
    return Publishing(publisher, tower, hook)
