"""The stream that --train_data names, as this rank's batches."""

import logging
import os
import secrets
import socket
from typing import Any

from ctr_trainer.estimator.model_directory import load_features
from ctr_trainer.experiment.experiment import Experiment
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.ranks import distributed
from ctr_trainer.stream import metrics
from ctr_trainer.stream.coordinator import Coordinator
from ctr_trainer.stream.network import CoordinatorServer, RemoteCoordinator
from ctr_trainer.stream.opening import dead_letters, opener
from ctr_trainer.stream.plan import Coordination, StreamPosition
from ctr_trainer.stream.reader import StreamReader
from ctr_trainer.stream.source import StreamAddress
from ctr_trainer.system.files.paths import is_local, path_of
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)


def open_stream(experiment: Experiment, position: Any) -> StreamReader:
    """Returns this rank's batches of the stream. A collective.

    Args:
      experiment: `Experiment`.
      position: that the checkpoint has; None without one.

    Raises:
      UserError: there is no feature spec, or the settings exclude each other.
    """
    config, model_dir = experiment.stream, experiment.model.model_dir
    spec, statistics = _features(experiment)
    address = StreamAddress.parse(experiment.data.train_data)
    group = f"ctr_trainer.{path_of(model_dir).name}"
    redis = experiment.run.publish.redis
    open_source = opener(address, config.kafka_config, redis, group)
    size, batch_size = distributed.size(), experiment.data.batch_size
    coordination: Coordination
    server, told, is_one_machine = None, None, distributed.is_one_machine()
    if distributed.is_chief():
        directory = str(model_dir) if is_local(model_dir) else None
        found = StreamPosition.from_dict(position)
        coordinator = Coordinator(
            open_source=open_source,
            config=config,
            position=found,
            has_other_position=position is not None and found is None,
            workers=size,
            batch_size=batch_size,
            dead_letters=dead_letters(address, config.kafka_config, redis, directory, group),
        )
        coordination = coordinator
        if config.metrics_port >= 0:
            port, end = metrics.serve(coordinator.figures, config.metrics_port)
            coordinator.closing.append(end)
            _log.info("Prometheus metrics of the stream on http://%s:%d/metrics", socket.gethostname(), port)
        if size > 1:
            key = secrets.token_bytes(32)
            server = CoordinatorServer(coordinator, "127.0.0.1" if is_one_machine else "0.0.0.0", key, size - 1)
            told = {"host": "127.0.0.1" if is_one_machine else _own_address(), "port": server.port, "key": key.hex()}
    told = distributed.broadcast_object(told, "stream_coordinator")
    if not distributed.is_chief():
        timeout = experiment.workers.stall_timeout
        place = told["host"], told["port"]
        coordination = RemoteCoordinator(place, bytes.fromhex(told["key"]), distributed.rank(), timeout)
    return StreamReader(open_source, spec, statistics, batch_size, coordination, server)


def _features(experiment: Experiment) -> tuple[FeatureSpec, dict[str, dict]]:
    """Returns the feature spec, and the statistics of the data that the model was trained on. A collective."""
    data, model = experiment.data, experiment.model
    found = None
    if distributed.is_chief():
        known = load_features(model.model_dir)
        given = FeatureSpec.load(data.feature_spec) if data.feature_spec else None
        spec = given or (known and known[0])
        found = spec and {"spec": spec.to_dict(), "statistics": known[1] if known else {}}
    found = distributed.broadcast_object(found, "stream_features")
    if not found:
        raise UserError("a stream has raw values, of which the model's features are made: give --feature_spec")
    spec = FeatureSpec.from_dict(found["spec"])
    return spec.with_dim(model.embedding_dim) if model.embedding_dim else spec, found["statistics"]


def _own_address() -> str:
    """Returns the address of this host by which the host that started the job, and so the others, reach it."""
    rendezvous = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((rendezvous or socket.gethostname(), 9))
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
