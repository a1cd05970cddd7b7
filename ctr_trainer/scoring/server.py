"""The process of a scoring server: from its address to its end."""

import contextlib
import logging
import os
import socket
import ssl

from ctr_trainer.embedding.service.security import ServerSecurity, is_loopback
from ctr_trainer.files import durable_file
from ctr_trainer.flags.servers import ScoreFlags
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import child
from ctr_trainer.publication.places import open_reader
from ctr_trainer.scoring.batcher import Batcher
from ctr_trainer.scoring.flight_server import FlightScorer
from ctr_trainer.scoring.http_app import HttpApp
from ctr_trainer.scoring.http_server import HttpServer, http_config, raise_descriptor_limit
from ctr_trainer.scoring.live_model import LiveModel
from ctr_trainer.scoring.metrics import ScoreMetrics

_log = logging.getLogger(__name__)
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


class ScoreServer:
    """A scoring server, which listens once it is made.

    Args:
      flags: `ScoreFlags`.
      open_reader: f() -> `RowReader`.

    Attributes:
      port: of HTTP.
      flight_port: of Arrow Flight, or None.

    Raises:
      UserError: a port is taken, a file of the security is missing, or other machines could connect without a token.
    """

    def __init__(self, flags, open_reader):
        security = ServerSecurity.read(flags.token_file, flags.tls_cert, flags.tls_key, flags.tls_client_ca)
        security.refuse_open_door(flags.bind)
        self._failure = None
        with contextlib.ExitStack() as stack:
            listening = stack.enter_context(_listen(flags.bind, flags.port))
            self._metrics = ScoreMetrics(self._figures, self._cached)
            self._live = LiveModel(
                open_reader,
                flags.name,
                flags.refresh_secs,
                flags.start_timeout,
                flags.max_age_secs,
                self._metrics.note_refresh,
                self._fail,
            )
            stack.callback(self._live.close)
            self._batcher = Batcher(self._live.score, flags.limits, self._metrics.note_batch)
            stack.callback(self._batcher.close)
            self._flight = None
            if flags.flight_port >= 0:
                self._flight = FlightScorer(
                    flags.bind, flags.flight_port, self._live, self._batcher, self._metrics, flags.limits, security
                )
                stack.callback(self._flight.stop, flags.stop_secs)
            hosts = _LOOPBACK if is_loopback(flags.bind) and security.token is None else ()
            app = HttpApp(self._live, self._batcher, self._metrics, flags.limits, security.token, hosts)
            self._http = HttpServer(http_config(app.asgi, flags.stop_secs, _secure(flags)))
            self._listening = listening
            self._closing = stack.pop_all()
        self.port = listening.getsockname()[1]
        self.flight_port = self._flight and self._flight.port

    def run(self):
        """Serves until `stop`, or SIGTERM or SIGINT if this is the main thread; then ends what is under way.

        Raises:
          UserError: there was no publication in time.
        """
        with self._closing:
            self._live.start()
            self._http.run(sockets=[self._listening])
        if self._failure is not None:
            raise self._failure

    def stop(self):
        """Has `run` end, from any thread."""
        self._http.should_exit = True

    def _fail(self, error):
        self._failure = error
        self.stop()

    def _cached(self):
        """-> (keys looked up in a cache of rows, keys found there)."""
        return self._live.model.cached if self._live.is_loaded else (0, 0)

    def _figures(self):
        """-> the gauges of `ScoreMetrics`."""
        figures = {"waiting_examples": ("Examples that wait", self._batcher.waiting)}
        if self._live.is_loaded:
            now = self._live.model.freshness
            figures |= {
                "generation": ("Generation that is served", now.generation),
                "epoch": ("Epoch that is served", now.epoch),
                "global_step": ("Global step of what is served", now.global_step),
                "age_seconds": ("Since the served rows were taken from the training", now.age_secs),
            }
        return figures


def serve(flags):
    """Serves until SIGTERM or SIGINT; call it on the main thread.

    Args:
      flags: `ScoreFlags`.

    Raises:
      UserError: see `ScoreServer`.
    """
    raise_descriptor_limit()
    server = ScoreServer(
        flags, lambda: open_reader(flags.model, flags.cache_dir, flags.redis, flags.cache_rows, flags.cache_secs)
    )
    # uvicorn has handlers of its own as it runs; it raises the signal that ended it once more after that.
    with child.handling_signals(lambda *_: server.stop()):
        scheme = "https" if flags.tls_cert else "http"
        _log.info("scoring server on %s://%s:%d, try it there by hand", scheme, flags.bind, server.port)
        if server.flight_port:
            _log.info("Arrow Flight on %s:%d", flags.bind, server.flight_port)
        if flags.port_file:
            durable_file.write_text(flags.port_file, f"{flags.bind}:{server.port}")
        server.run()
        _log.info("scoring server on port %d has ended", server.port)


def _listen(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off for sockets of this protocol only; an answer, of two writes, would take 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host.strip("[]"), port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise UserError(f"--bind={host}, --port={port}: {os.strerror(error.errno or 0)}; name a free one") from None
    return listening


def _secure(flags: ScoreFlags) -> dict:
    """Returns uvicorn's settings of TLS."""
    secure: dict = {}
    if flags.tls_cert:
        secure = {"ssl_certfile": flags.tls_cert, "ssl_keyfile": flags.tls_key}
    if flags.tls_client_ca:
        secure |= {"ssl_ca_certs": flags.tls_client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    return secure
