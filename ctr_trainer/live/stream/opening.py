"""Opens the stream that a URL names, for all workers."""

import importlib
import logging
import os
import secrets
import socket
from collections.abc import Callable
from typing import Any

from ctr_trainer.data.input_schemes import STREAMS
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.stream import figures
from ctr_trainer.live.stream.coordinator import Coordinator
from ctr_trainer.live.stream.network import CoordinatorServer, RemoteCoordinator
from ctr_trainer.live.stream.plan import StreamPosition
from ctr_trainer.live.stream.reader import StreamReader
from ctr_trainer.live.stream.source import DeadLetters, StreamAddress, StreamSource
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.training_configs import RedisFiles, StreamConfig
from ctr_trainer.system.files.paths import is_local, path_of

_log = logging.getLogger(__name__)
_FILE = "dead_letters.jsonl"


def open_stream(
    *,
    url: str,
    config: StreamConfig,
    redis: RedisFiles,
    model_dir: str,
    position: Any,
    spec: FeatureSpec,
    statistics: dict[str, dict],
    batch_size: int,
    per_step: int,
    late: tuple[str, str] | None,
    stall_timeout: float,
) -> StreamReader:
    """Returns this rank's batches of the stream, beginning at the checkpoint's position. A collective.

    `position` is that in the checkpoint, or None, and `stall_timeout` the longest wait for rank 0 in seconds. For the
    other arguments see `Coordinator` and `StreamReader`. Raises UserError if the stream cannot be read.
    """
    address = StreamAddress.parse(url)
    group = f"ctr_trainer.{path_of(model_dir).name}"
    open_source = opener(address, config.kafka_config, redis, group)
    size = distributed.size()
    coordination: Coordinator | RemoteCoordinator
    told, is_one_machine = None, distributed.is_one_machine()
    if distributed.is_chief():
        coordinator = Coordinator(
            open_source=open_source,
            config=config,
            position=StreamPosition.from_dict(position),
            workers=size,
            batch_size=batch_size,
            dead_letters=dead_letters(address, config.kafka_config, redis, model_dir if is_local(model_dir) else None),
            per_step=per_step,
        )
        coordination = coordinator
        if config.metrics_port >= 0:
            metrics = figures.serve(coordinator.figures, config.metrics_port)
            coordinator.closing += [metrics.shutdown, metrics.server_close]
            name, port = socket.gethostname(), metrics.server_port
            _log.info("Prometheus metrics of the stream on http://%s:%d/metrics", name, port)
        if size > 1:
            key = secrets.token_bytes(32)
            server = CoordinatorServer(coordinator, "127.0.0.1" if is_one_machine else "0.0.0.0", key)
            told = {"host": "127.0.0.1" if is_one_machine else _own_address(), "port": server.port, "key": key.hex()}
    told = distributed.broadcast_object(told, "stream_coordinator")
    if not distributed.is_chief():
        place = told["host"], told["port"]
        coordination = RemoteCoordinator(place, bytes.fromhex(told["key"]), distributed.rank(), stall_timeout)
    return StreamReader(
        open_source=open_source,
        spec=spec,
        statistics=statistics,
        batch_size=batch_size,
        coordination=coordination,
        late=late,
    )


def opener(address: StreamAddress, kafka_config: str, redis: RedisFiles, group: str) -> Callable[[], StreamSource]:
    """Returns a function that opens a stream. Each call opens separate connections, for one thread.

    `group`: the consumer group to which positions are committed, unless the file `kafka_config` names one.

    Raises UserError: the client library is missing, or the file cannot be read.
    """
    return importlib.import_module(STREAMS[address.scheme]).source_opener(address, kafka_config, redis, group)


def dead_letters(address: StreamAddress, kafka_config: str, redis: RedisFiles, directory: str | None) -> DeadLetters:
    """Returns the destination of bad records: the stream that the URL names for them, or else a local file."""
    file = os.path.join(directory, _FILE) if directory else None
    if not address.dead_letters:
        return DeadLetters(file)
    send = importlib.import_module(STREAMS[address.scheme]).dead_letters(address, kafka_config, redis)
    return DeadLetters(file, address.dead_letters, send)


def _own_address() -> str:
    """Returns the address at which the host that started the job, and thus every other host, reaches this host."""
    rendezvous = os.environ.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", "")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((rendezvous or socket.gethostname(), 9))
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
