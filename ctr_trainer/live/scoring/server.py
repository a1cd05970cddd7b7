"""The process of a scoring server, and its metrics."""

import contextlib
import logging
import os
import resource
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from ctr_trainer.embedding.service.security import ServerSecurity, is_loopback
from ctr_trainer.live.publication.places import RowReader, open_reader
from ctr_trainer.live.scoring.batcher import Batcher
from ctr_trainer.live.scoring.flight_server import FlightScorer
from ctr_trainer.live.scoring.http_app import HttpApp, refused
from ctr_trainer.live.scoring.http_server import HttpServer
from ctr_trainer.live.scoring.live_model import LiveModel
from ctr_trainer.live.scoring.refusals import WrongHost, shown
from ctr_trainer.live.scoring.served_model import Scored
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.files import durable_file
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import child

_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_EXAMPLES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)
_log = logging.getLogger(__name__)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class ScoreMetrics:
    """The metrics of a scoring server, for Prometheus. docs/serving.md describes them.

    Args:
      collect: yields the metrics that are computed at each scrape.
    """

    def __init__(self, collect: Callable[[], Iterator[Metric]]) -> None:
        self.collect = collect  # The registry calls this method.
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "Requests answered", "transport", "status")
        self._request_seconds = self._histogram("request_seconds", "Time of a request", _SECONDS, "transport")
        self._wait_seconds = self._histogram("wait_seconds", "Wait of a batch's first request", _SECONDS)
        self._part_seconds = self._histogram("part_seconds", "Time of the parts of a batch", _SECONDS, "part")
        self._batch_examples = self._histogram("batch_examples", "Examples of a batch", _EXAMPLES)
        self._keys = self._counter("keys", "Distinct keys whose rows were read")
        self._refreshes = self._counter("refreshes", "Looks for a newer record", "outcome")
        self._registry.register(self)

    def note_request(self, transport: str, status: int, seconds: float) -> None:
        """Counts an answered request."""
        self._requests.labels(transport, str(status)).inc()
        self._request_seconds.labels(transport).observe(seconds)

    def note_batch(self, scored: Scored, examples: int, waited: float) -> None:
        """Counts a batch; see `Batcher`."""
        self._wait_seconds.observe(waited)
        self._batch_examples.observe(examples)
        self._keys.inc(scored.distinct_keys)
        for part, seconds in scored.seconds.items():
            self._part_seconds.labels(part).observe(seconds)

    def note_refresh(self, outcome: str) -> None:
        """Counts a check for a newer record."""
        self._refreshes.labels(outcome).inc()

    def text(self) -> bytes:
        """Returns all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"ctr_score_{name}", text, labels, registry=self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(f"ctr_score_{name}", text, labels, buckets=buckets, registry=self._registry)


class ScoreServer:
    """A scoring server. It listens as soon as it is constructed.

    Args:
      open_reader: opens the publication; see `LiveModel`.

    Attributes:
      port: the HTTP port.
      flight_port: the port of Arrow Flight, or None.

    Raises:
      UserError: a port is taken, a token or key file is missing, or other machines could connect without a token.
    """

    def __init__(self, flags: ScoreFlags, open_reader: Callable[[], RowReader]) -> None:
        security = ServerSecurity.read(flags.token_file, flags.tls_cert, flags.tls_key, flags.tls_client_ca)
        security.refuse_open_door(flags.bind)
        self._failure: UserError | None = None
        with contextlib.ExitStack() as stack:
            listening = stack.enter_context(_listen(flags))
            metrics = ScoreMetrics(self._current)
            self._live = live = LiveModel(flags, open_reader, metrics.note_refresh, self._fail)
            stack.callback(live.close)
            self._batcher = Batcher(lambda examples: live.model.score(examples), flags.limits, metrics.note_batch)
            stack.callback(self._batcher.close)
            self.flight_port: int | None = None
            if flags.flight_port >= 0:
                flight = FlightScorer(flags, live, self._batcher, metrics.note_request, security)
                stack.callback(flight.stop, flags.stop_secs)
                self.flight_port = flight.port
            app: ASGIApp = HttpApp(
                live, self._batcher, metrics.note_request, metrics.text, flags.limits, security.token
            )
            if is_loopback(flags.bind) and security.token is None:
                app = _of_hosts(app, _LOOPBACK)
            self._http = HttpServer(app, flags.stop_secs, _secure(flags))
            self._listening = listening
            self._closing = stack.pop_all()
        self.port = listening.getsockname()[1]

    def run(self) -> None:
        """Serves until `stop` is called or the main thread gets SIGTERM or SIGINT, then finishes running requests.

        Raises:
          UserError: no publication was found in time.
        """
        with self._closing:
            self._live.start()
            self._http.run(sockets=[self._listening])
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Makes `run` end. Any thread may call it."""
        self._http.should_exit = True

    def _fail(self, error: UserError) -> None:
        self._failure = error
        self.stop()

    def _current(self) -> Iterator[Metric]:
        """Yields the metrics that are computed at each scrape."""
        model = self._live.model if self._live.is_loaded else None
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


def _of_hosts(app: ASGIApp, hosts: tuple[str, ...]) -> ASGIApp:
    """Returns an application that answers only requests whose `Host` header names one of the hosts.

    Otherwise, if the server has no token, a web page of another site could read predictions through a host name that
    resolves to this machine.
    """

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        host = request.headers.get("host", "")
        if host and host.rpartition(":")[0].lower() not in hosts and host.lower() not in hosts:
            error = WrongHost(
                f"this server is {' or '.join(hosts)}, not {shown(host)}: send one of these as `Host`, or start "
                "the server with a token (token_file)"
            )
            await (await refused(request, error))(scope, receive, send)
        else:
            await app(scope, receive, send)

    return answer


def serve(flags: ScoreFlags) -> None:
    """Serves until SIGTERM or SIGINT. Must be called on the main thread."""
    _raise_descriptor_limit()
    server = ScoreServer(
        flags, lambda: open_reader(flags.model, flags.cache_dir, flags.redis, flags.cache_rows, flags.cache_secs)
    )
    # While uvicorn runs, it has its own handlers; when it ends, it raises the signal again.
    with child.handling_signals(lambda *_: server.stop()):
        scheme = "https" if flags.tls_cert else "http"
        _log.info("scoring server on %s://%s:%d, try it there by hand", scheme, flags.bind, server.port)
        if server.flight_port:
            _log.info("Arrow Flight on %s:%d", flags.bind, server.flight_port)
        if flags.port_file:
            durable_file.write_text(flags.port_file, f"{flags.bind}:{server.port}")
        server.run()
        _log.info("scoring server on port %d has ended", server.port)


def _raise_descriptor_limit() -> None:
    """Raises the process's limit of file descriptors to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listen(flags: ScoreFlags) -> socket.socket:
    family = socket.AF_INET6 if ":" in flags.bind else socket.AF_INET
    # asyncio disables Nagle's algorithm only for sockets with this protocol. With the algorithm, an answer would take
    # 40 ms, because the server sends it in two writes.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((flags.bind.strip("[]"), flags.port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise flags.refused("{bind}, {port}: {why}; name a free one", why=os.strerror(error.errno or 0)) from None
    return listening


def _secure(flags: ScoreFlags) -> dict[str, Any]:
    """Returns uvicorn's settings for TLS."""
    secure: dict[str, Any] = {}
    if flags.tls_cert:
        secure = {"ssl_certfile": flags.tls_cert, "ssl_keyfile": flags.tls_key}
    if flags.tls_client_ca:
        secure |= {"ssl_ca_certs": flags.tls_client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return secure
