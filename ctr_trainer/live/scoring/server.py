"""The process of a scoring server."""

import contextlib
import gc
import logging
import os
import socket
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from ctr_trainer.embedding.service.security import ServerSecurity, split_address
from ctr_trainer.live.publication.places import RowReader, open_reader
from ctr_trainer.live.scoring.batcher import Batcher
from ctr_trainer.live.scoring.http_app import HttpApp
from ctr_trainer.live.scoring.http_server import HttpServer
from ctr_trainer.live.scoring.live_model import LiveModel
from ctr_trainer.live.scoring.metrics import ScoreMetrics
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.processes import child, hardware

_log = logging.getLogger(__name__)


class ScoreServer:
    """A scoring server. It listens as soon as it is constructed.

    For `open_reader` and `on_load`, see `LiveModel`.

    Attributes:
      host, port: the address.

    Raises UserError: a port is taken, a token or key file is missing, or other machines could connect without a token.
    """

    def __init__(
        self, flags: ScoreFlags, open_reader: Callable[[], RowReader], on_load: Callable[[], object] = lambda: None
    ) -> None:
        security = ServerSecurity.read(flags.token_file, flags.tls_cert, flags.tls_key, flags.tls_client_ca)
        self.host, _ = split_address(flags.bind)
        security.refuse_open_door(self.host)
        metrics = ScoreMetrics()
        metrics.registry.register(self)
        with contextlib.ExitStack() as stack:
            self._listening = stack.enter_context(_listen(flags))
            self._live = live = LiveModel(flags, open_reader, metrics, on_load, self.stop)
            stack.callback(live.close)
            self._batcher = Batcher(
                lambda examples: live.model.score(examples),
                flags.limits,
                lambda: live.model.reader.is_local,
                metrics.note_batch,
            )
            stack.callback(self._batcher.close)
            self._http = HttpServer(HttpApp(flags, live, self._batcher, metrics, security.token), flags)
            self._closing = stack.pop_all()
        self.port = self._listening.getsockname()[1]

    def run(self) -> None:
        """Serves until `stop` is called or the main thread gets SIGTERM or SIGINT, then finishes running requests.

        Raises UserError: no publication was found in time.
        """
        with self._closing:
            self._live.start()
            self._http.run([self._listening])
        if self._live.failure is not None:
            raise self._live.failure

    def stop(self) -> None:
        """Makes `run` end. Any thread may call it."""
        self._http.should_exit = True

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics that are computed at each scrape."""
        model = self._live.loaded
        gauges: list[tuple[str, str, float | None]] = [
            ("waiting_examples", "Examples that wait", self._batcher.waiting)
        ]
        if model is not None:
            now = model.freshness
            gauges += [
                ("generation", "Generation that is served", now.generation),
                ("epoch", "Epoch that is served", now.epoch),
                ("global_step", "Global step of what is served", now.global_step),
                ("age_seconds", "Since the served rows were taken from the training", now.age_secs),
                ("event_age_seconds", "Since the newest event that is trained", now.event_age_secs),
                ("lag_records", "Records that waited when the served rows were taken", now.lag_records),
            ]
        for name, text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"ctr_score_{name}", text, value=value)
        lookups, hits = (model.reader.lookups, model.reader.hits) if model is not None else (0, 0)
        found = CounterMetricFamily("ctr_score_row_cache_keys", "Keys looked up in the cache of rows", labels=["found"])
        found.add_metric(["yes"], hits)
        found.add_metric(["no"], lookups - hits)
        yield found
        yield from model.new_keys.metrics("ctr_score") if model is not None else ()


def serve(flags: ScoreFlags) -> None:
    """Serves until SIGTERM or SIGINT. Must be called on the main thread of a process of its own, which it tunes."""
    hardware.allow_open_files()  # Each connection is one.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    def freeze() -> None:
        gc.collect()
        gc.freeze()  # A later collection would visit the objects of the graph, and halt all requests for 0.2 s.

    server = ScoreServer(flags, lambda: open_reader(flags.model, flags.redis, flags.cache_rows), freeze)
    with child.handling_signals(lambda *_: server.stop()):
        scheme = "https" if flags.tls_cert else "http"
        _log.info("scoring server on %s://%s:%d, try it there by hand", scheme, server.host, server.port)
        if flags.port_file:
            LocalPath(flags.port_file).write_text(f"{server.host}:{server.port}")
        server.run()
        _log.info("scoring server on port %d has ended", server.port)


def _listen(flags: ScoreFlags) -> socket.socket:
    host, port = split_address(flags.bind)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets with this protocol. With the algorithm, an answer would take
    # 40 ms, because the server sends it in two writes.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, flags.shared_port)
        listening.bind((host.strip("[]"), port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise flags.refused("{bind}: {why}; name a free port", why=os.strerror(error.errno or 0)) from None
    return listening
