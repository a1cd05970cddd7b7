"""Opens the publication of a training, which is an extension of it, see `estimator.extension`."""

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.export.saved_model import TrainedFeatures
from ctr_trainer.live.publication.delivery import DeliverySupervisor, start_delivery
from ctr_trainer.live.publication.dense_tower import DenseTower
from ctr_trainer.live.publication.publisher import Publisher
from ctr_trainer.live.publication.spool import DIRECTORY, Spool
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.training_configs import PublishConfig
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.files.staging import local_directory
from ctr_trainer.system.measuring.clock import Clock
from ctr_trainer.system.messages.errors import UserError

_LOG = "publish.log"  # In the model directory.


def open_publishing(
    *,
    config: PublishConfig,
    model_dir: str,
    model_name: str,
    model_fn: Callable[..., Any],
    params: Any,
    trained_features: TrainedFeatures | None,
    new_keys: NewKeys,
    store: Store,
    tables: Sequence[TableConfig],
    stream_state: Callable[[], dict[str, float]] | None,
    catch_up: Callable[[], None],
    clock: Clock,
    is_stopping: Callable[[], bool],
    grace_secs: float,
) -> Publisher | None:
    """Returns the `Publisher` of a training whose graph is the default graph; None on ranks other than 0.

    Args:
      params: the params of `model_fn`, as this graph uses them.
      trained_features: (FeatureSpec, statistics) of the model; None if it has no feature spec.
      store, tables: the rows to publish.
      stream_state: see `Spool`.
      catch_up, clock, is_stopping, grace_secs: see `Publisher`.

    Raises:
      UserError: the model has no feature spec, which a server needs to look up its rows; or its predictions have a
        variable that its training does not have.
    """
    if trained_features is None:
        raise UserError(
            f"publish={config.to}: a model that is fed by a tf.data.Dataset has no feature spec, which a server needs "
            "to look up rows: train it on converted data, or export it after training with a serving_input_receiver_fn"
        )
    if not distributed.is_chief():
        return None
    tower = DenseTower(model_fn, params, trained_features, new_keys)
    spool = Spool(
        path_of(model_dir) / DIRECTORY,
        model_name,
        store.publish,
        tables,
        config.dtype,
        stream_state,
        tower.inputs,
        config.change_inputs,
    )
    log = os.path.join(local_directory(model_dir), _LOG)
    cores = distributed.service_cores(1, steps_wait=False)  # The demo loses 5 to 14% of its speed; 19% on all cores.
    start = functools.partial(start_delivery, spool.path, config.to, config.redis, log, cores)
    return Publisher(
        config=config,
        spool=spool,
        variables=trained_variables(tower.variables),
        write_tower=tower.write,
        delivery=DeliverySupervisor(start),
        clock=clock,
        is_stopping=is_stopping,
        grace_secs=grace_secs,
        catch_up=catch_up,
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
