"""Opens --train_data for all workers if it is a stream."""

import logging
import os
import secrets
import socket
from typing import Any

from ctr_trainer.checkpoint.model_directory import load_features
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.stream.coordinator import Coordinator
from ctr_trainer.live.stream.figures import Figures, serve
from ctr_trainer.live.stream.network import CoordinatorServer, RemoteCoordinator
from ctr_trainer.live.stream.opening import dead_letters, opener
from ctr_trainer.live.stream.plan import StreamPosition
from ctr_trainer.live.stream.reader import StreamReader, refuse_unfitted
from ctr_trainer.live.stream.source import StreamAddress
from ctr_trainer.models.delayed_labels import LATE
from ctr_trainer.models.params import WAIT
from ctr_trainer.ranks import distributed
from ctr_trainer.system.files.paths import is_local, path_of
from ctr_trainer.system.messages.errors import UserError

_log = logging.getLogger(__name__)


def open_stream(experiment: Experiment, position: Any) -> StreamReader:
    """Returns this rank's batches of the stream, beginning at the checkpoint's position. A collective.

    Raises:
      UserError: the stream cannot be read, the feature spec is missing, or settings exclude each other.
    """
    spec, statistics = _features(experiment)
    refuse_unfitted(spec, statistics)  # Before anything is opened.
    config, redis, batch_size = experiment.stream, experiment.run.publish.redis, experiment.data.batch_size
    address, model_dir = StreamAddress.parse(experiment.data.train_data), str(experiment.model.model_dir)
    open_source = opener(address, config.kafka_config, redis, f"ctr_trainer.{path_of(model_dir).name}")
    coordination: Coordinator | RemoteCoordinator
    told, size, is_one_machine = None, distributed.size(), distributed.is_one_machine()
    if distributed.is_chief():
        figures, begin = Figures(), StreamPosition.from_dict(position)
        letters = dead_letters(address, config.kafka_config, redis, model_dir if is_local(model_dir) else None)
        # The port is opened before the thread of the coordinator starts, because it may be taken.
        metrics = serve(figures, config.metrics_port) if config.metrics_port >= 0 else None
        coordination = coordinator = Coordinator(
            open_source=open_source,
            config=config,
            position=begin,
            workers=size,
            batch_size=batch_size,
            dead_letters=letters,
            figures=figures,
            per_step=experiment.train.accumulation_steps,
        )
        if metrics is not None:
            coordinator.closing += [metrics.shutdown, metrics.server_close]
            _log.info(
                "Prometheus metrics of the stream on http://%s:%d/metrics", socket.gethostname(), metrics.server_port
            )
        if size > 1:
            key = secrets.token_bytes(32)
            server = CoordinatorServer(coordinator, "127.0.0.1" if is_one_machine else "0.0.0.0", key)
            told = {"host": "127.0.0.1" if is_one_machine else _own_address(), "port": server.port, "key": key.hex()}
    told = distributed.broadcast_object(told, "stream_coordinator")
    if not distributed.is_chief():
        place, timeout = (told["host"], told["port"]), experiment.workers.stall_timeout
        coordination = RemoteCoordinator(place, bytes.fromhex(told["key"]), distributed.rank(), timeout)
    params, labels = experiment.params, [label.name for label in spec.labels]
    has_late = params.delayed_labels != WAIT and {params.label, LATE} <= set(labels)
    return StreamReader(
        open_source=open_source,
        spec=spec,
        statistics=statistics,
        batch_size=batch_size,
        coordination=coordination,
        late=(params.label, LATE) if has_late else None,
    )


def _features(experiment: Experiment) -> tuple[FeatureSpec, dict[str, dict]]:
    """Returns the feature spec, and the statistics of the model's training data. A collective."""
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
    """Returns the address at which the host that started the job, and thus every other host, reaches this host."""
    rendezvous = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((rendezvous or socket.gethostname(), 9))
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
