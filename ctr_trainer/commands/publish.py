"""Publishes a checkpoint as a new generation for servers, or delivers what an ended training has left in its spool.

A training with --publish delivers its spool itself. A model with other inputs replaces a published one only with
--change_inputs. docs/serving.md describes the publications and the servers.
"""

import dataclasses
import json

from ctr_trainer.commands.experiment.checks import require_model
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.flags import OF_MODELS
from ctr_trainer.settings.by_flag import alike, require
from ctr_trainer.settings.command_flags import TrainedModelFlags
from ctr_trainer.settings.setting import Settings, setting
from ctr_trainer.settings.training_configs import GRACE_SECONDS, RedisFiles
from ctr_trainer.system.processes import tensorflow_import


@dataclasses.dataclass(frozen=True)
class PublishFlags(Settings, title="Publish"):
    to: str = setting(
        "", "where to publish: a directory, its URL, or redis://host:port,host:port/NAME of a cluster", "path"
    )
    source: str = setting(
        "",
        "spool of an ended training, to deliver the rest to its target, instead of a checkpoint",
        "path",
        flag="input",
    )


GROUPS = (Experiment, TrainedModelFlags, PublishFlags)
REDIS = ("redis_auth_file", "redis_ca", "redis_cert")
TAKES = (*OF_MODELS, "to", "input", "publish_dtype", "change_inputs", *REDIS)
EXAMPLES = (
    "python -m ctr_trainer publish --model_dir=demo/model --to=publications/ctr",
    "python -m ctr_trainer publish --model_dir=demo/model --to=s3://bucket/ctr --publish_dtype=float16",
    "python -m ctr_trainer publish --model_dir=demo/model --checkpoint=1000 "
    "--to=rediss://redis-1:7000,redis-2:7000/ctr --redis_auth_file=auth --redis_ca=ca.pem",
    "python -m ctr_trainer publish --input=demo/model/publication --to=redis://127.0.0.1:7000/ctr",
)


def run(given: frozenset[str], experiment: Experiment, use: TrainedModelFlags, publish: PublishFlags) -> None:
    """Publishes. For a checkpoint, the last line of the output is a JSON object."""
    require(publish, "to")
    if publish.source:
        _deliver(publish, experiment.run.publish.redis)
    else:
        publish_checkpoint(given, experiment, use.checkpoint, publish.to)


def _deliver(publish: PublishFlags, redis: RedisFiles) -> None:
    """Delivers a spool until SIGTERM, or, as a `Child`, until standard input closes."""
    import functools

    from ctr_trainer.live.publication.delivery import deliver
    from ctr_trainer.live.publication.places import open_target
    from ctr_trainer.system.processes import child

    with child.ending_event(is_child=child.told_by_parent() is not None) as ended:
        deliver(publish.source, publish.to, functools.partial(open_target, publish.to, redis), ended)


def publish_checkpoint(
    given: frozenset[str], experiment: Experiment, checkpoint: str, to: str, grace_secs: float = GRACE_SECONDS
) -> None:
    """Publishes a checkpoint. Earlier generations stay for `grace_secs`; with 0 they are removed at once."""
    require_model(experiment.model)

    import contextlib

    tensorflow_import.load()
    from ctr_trainer.commands.experiment.build import open_trained
    from ctr_trainer.live.publication.delivery import Delivery
    from ctr_trainer.live.publication.from_checkpoint import write_publication
    from ctr_trainer.live.publication.places import open_target
    from ctr_trainer.ranks import distributed
    from ctr_trainer.system.files.temporary import temporary_directory

    distributed.init(experiment.workers.stall_timeout, flags=alike(experiment))
    with contextlib.closing(open_target(to, experiment.run.publish.redis, grace_secs)) as target:
        _, estimator, found = open_trained(given, experiment, checkpoint)
        with temporary_directory() as spool:
            write_publication(spool, estimator, found, experiment.run.publish)
            record = Delivery(spool, lambda: target).step()
        if not grace_secs:
            target.tidy()
    assert record is not None  # The spool contains one record.
    said = dict(to=to, checkpoint=found.path, global_step=record.global_step, rows=record.rows)
    print(json.dumps(said), flush=True)
