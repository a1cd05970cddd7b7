"""Publishes a model while it trains: an extension of a training, see `estimator.extension`."""

import functools
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow.compat.v1 as tf1

from ctr_trainer.embedding.store.store import Store
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.export.saved_model import TrainedFeatures
from ctr_trainer.live.publication.delivery import DeliveryProcess, DeliverySupervisor
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
_LAST_SECONDS, _SHARE_OF_GRACE = 600.0, 3


class Publishing:
    """Offers the dense tower to a publisher at the start of a training, every `secs` seconds, and at the end.

    Staleness: if the workers average their dense variables only every few steps, the tower has the variables of rank 0.

    Args:
      variables: the tower's variables by name.
      secs: seconds between two offers.
      clock: `Clock` of the training thread.
      is_stopping: f() -> whether a signal has asked the training to end.
      grace_secs: seconds that the end of the training may then take.
      catch_up: f(), called before each offer, makes the rows of a dense optimizer catch up on missed steps.
      tower: closed with the publisher; None if there is nothing to close.
    """

    def __init__(
        self,
        publisher: Publisher,
        variables: dict[str, tf1.Variable],
        secs: float,
        clock: Clock,
        is_stopping: Callable[[], bool],
        grace_secs: float,
        catch_up: Callable[[], None] = lambda: None,
        tower: DenseTower | None = None,
    ) -> None:
        self._publisher, self._variables, self._secs, self._clock = publisher, variables, secs, clock
        self._is_stopping, self._grace_secs, self._catch_up = is_stopping, grace_secs, catch_up
        self._tower, self._offered = tower, 0.0
        self.status_lines = [publisher.status_line]

    def begin(self, session: tf1.Session, step: int) -> None:
        """Makes the first offer."""
        self._offer(session, step)

    def after_step(self, session: tf1.Session, step: int) -> None:
        """Makes an offer if it is due."""
        if time.monotonic() >= self._offered + self._secs:
            with self._clock.within("hooks"):
                self._offer(session, step)

    def finish(self, session: tf1.Session, step: int) -> None:
        """Makes the last offer, and waits until it is published and delivered."""
        self._offer(session, step)
        with self._clock.within("hooks"):
            self._publisher.finish(self._grace_secs / _SHARE_OF_GRACE if self._is_stopping() else _LAST_SECONDS)

    def results(self) -> dict[str, Any]:
        """Returns the figures of the publication for the training summary."""
        return {"publication": self._publisher.results()}

    def close(self) -> None:
        """Ends the publication. Also called after an error."""
        self._publisher.close()
        if self._tower is not None:
            self._tower.close()

    def _offer(self, session: tf1.Session, step: int) -> None:
        self._catch_up()
        self._publisher.offer(step, session.run(self._variables))
        self._offered = time.monotonic()


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
) -> Publishing | None:
    """Returns the `Publishing` of a training whose graph is the default graph; None on ranks other than 0.

    Args:
      params: the params of `model_fn`, as this graph uses them.
      trained_features: (FeatureSpec, statistics) of the model; None if it has no feature spec.
      store, tables: the rows to publish.
      stream_state: see `Spool`.
      catch_up, clock, is_stopping, grace_secs: see `Publishing`.

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
    process = functools.partial(DeliveryProcess, spool.path, config.to, config.redis, log, cores)
    return Publishing(
        publisher=Publisher(spool, tower.write, DeliverySupervisor(process), config),
        variables=trained_variables(tower.variables),
        secs=config.secs,
        clock=clock,
        is_stopping=is_stopping,
        grace_secs=grace_secs,
        catch_up=catch_up,
        tower=tower,
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
