"""The process of a service, from its start to its end."""

import logging
import os
import threading
import time

import pyarrow as pa

from ctr_trainer.embedding.memory.growable_array import keep_freed_memory
from ctr_trainer.embedding.memory.memory_limits import MemoryWatch
from ctr_trainer.embedding.service.security import ServerSecurity, split_address
from ctr_trainer.embedding.service.service import Service
from ctr_trainer.embedding.table.cold_rows import Disk
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.measuring.latency import UNIT
from ctr_trainer.system.messages import log_lines
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import child

_log = logging.getLogger(__name__)
_STATUS_SECONDS = 30
_SIGNAL_SECONDS = 0.25
_SHUTDOWN_SECONDS = 10
_KEPT_BYTES = 1 << 30


def serve(
    bind: str,
    data_dir: str | os.PathLike,
    security: ServerSecurity = ServerSecurity(),  # noqa: B008, it is frozen
    port_file: str | None = None,
    exit_with_stdin: bool = False,
    metrics_port: int | None = None,
    file_cores: set[int] | None = None,
    disk: Disk | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT. Call it on the main thread.

    A service that ends with its parent process ignores these signals, because a training still needs it to save.

    Args:
      bind: `host:port`; port 0 picks a free one. An address that is not loopback needs a token.
      data_dir: directory of the snapshots, or its URL; made if it does not exist.
      port_file: file to which `host:port` is written, by rename, once the service answers.
      exit_with_stdin: whether to end when stdin closes, that is, when the parent process ends, instead of at a signal.
      metrics_port: port for Prometheus, on the host of `bind`; None for none.
      file_cores, disk: see `Service`.

    Raises UserError if the address cannot be bound, or if it needs a token.
    """
    log_lines.install(log_lines.installed_form())
    host, port = split_address(bind)
    security.refuse_open_door(host)
    with child.ending_event(is_child=exit_with_stdin) as stop:
        path_of(data_dir).mkdir(parents=True, exist_ok=True)
        keep_freed_memory(_KEPT_BYTES)
        try:
            service = Service(host, port, data_dir, security, file_cores=file_cores, disk=disk)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"cannot serve on {bind}: {error}; if the port is taken, name a free one") from None
        if metrics_port is not None:
            _log.info("Prometheus metrics on http://%s:%d/metrics", host, service.metrics.serve(metrics_port, host))
        address = f"{host}:{service.port}"
        _log.info("embedding service %s answers on %s", service.incarnation, address)
        if port_file:
            LocalPath(port_file).write_text(address)
        _log.info(UNIT)
        memory = MemoryWatch("this service")
        next_status = time.monotonic() + _STATUS_SECONDS
        # Waits are short, because Python handles a signal that comes just before a wait only after the wait.
        ends = False
        while not ends:
            ends = stop.wait(min(max(next_status - time.monotonic(), 0), _SIGNAL_SECONDS))
            if ends or time.monotonic() >= next_status:
                next_status += _STATUS_SECONDS
                memory.look()
                for line in service.metrics.status_lines():
                    _log.info(line)
        _log.info("embedding service on %s ends", address)
        # Running calls may finish, but a client that has stopped reading must not delay the exit.
        closing = threading.Thread(target=service.shutdown, daemon=True)
        closing.start()
        closing.join(_SHUTDOWN_SECONDS)
        service.leave_directory()
        if closing.is_alive():
            _log.warning("calls that have not ended after %d s are aborted", _SHUTDOWN_SECONDS)
            os._exit(0)
