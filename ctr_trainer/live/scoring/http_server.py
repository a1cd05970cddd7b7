"""The HTTP server of `score`: uvicorn, with limits that apply before a token, and an orderly end.

A client that sends over `_MOST_HEAD_BYTES` of an unfinished head, or between the parts of a chunked body, gets 400. A
connection is closed if `_SILENT_SECONDS` pass from its start or its last answer to the end of the next headers, if over
`_MOST_PIPELINED` of its requests wait for the answer to an earlier one, or if it is the longest idle one of over
`_MOST_CONNECTIONS`. `HttpApp` limits the bodies.
"""

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import time
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ctr_trainer.live.scoring.http_app import HttpApp
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
_seldom = Seldom(_log)
_MOST_HEAD_BYTES, _MOST_CONNECTIONS, _MOST_PIPELINED = 32 << 10, 1024, 16
_LONG_HEAD = f"the URL and the headers have over {_MOST_HEAD_BYTES} bytes: send fewer"
# Longer than the idle timeout of common clients and load balancers, which could otherwise send on a closed connection.
_SILENT_SECONDS = 75
# After the listener closes, idle connections stay open for this long, because requests may be on their way.
_DRAIN_SECONDS, _LOOK_SECONDS = 1.0, 0.05


class _Parser(httptools.HttpRequestParser):
    """Reads a request to upgrade the protocol, as Java's client sends it, as one of HTTP/1.1. RFC 9110 allows that."""

    def __init__(self, connection: "_Connection") -> None:
        super().__init__(connection)
        self._connection = connection

    def feed_data(self, data: bytes) -> None:  # type: ignore[override]
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as error:  # httptools skips the body.
            if self.get_method() == b"CONNECT":
                raise httptools.HttpParserError("expected GET or POST") from None
            self._connection.resume_without_upgrade(data[error.args[0] :])


class _Connection(HttpToolsProtocol):
    """A connection of uvicorn, with the limits that its protocol lacks. The parser calls the methods `on_`."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.access_log = False
        self.parser = _Parser(self)
        self._silent_since, self._unfinished = time.monotonic(), 0
        if len(self.connections) > _MOST_CONNECTIONS:
            _seldom.warning("over %d HTTP connections: the longest idle one is closed", _MOST_CONNECTIONS)
            idle = [each for each in _connections(self.server_state) if each.is_idle and each is not self]
            min(idle, key=lambda each: each._silent_since, default=self).transport.abort()

    @property
    def is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def look(self, now: float) -> None:
        """Ends a connection that has been silent for too long."""
        if (self.is_idle or self.flow.write_paused) and now > self._silent_since + _SILENT_SECONDS:
            self.transport.abort()

    def resume_without_upgrade(self, rest: bytes) -> None:
        start = b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)
        headers = [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = _Parser(self)
        self.parser.feed_data(b"\r\n".join([start, *headers, b"", rest]))

    def data_received(self, data: bytes) -> None:
        self._unfinished += len(data)
        super().data_received(data)
        if self._unfinished > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response(_LONG_HEAD)

    def send_400_response(self, msg: str) -> None:
        if self.is_idle or self.cycle.more_body:
            super().send_400_response(msg)
        else:
            self.cycle.keep_alive = False  # The earlier requests are answered.

    def on_headers_complete(self) -> None:
        is_long = self._unfinished > _MOST_HEAD_BYTES
        if is_long and len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > _MOST_HEAD_BYTES:
            raise ValueError(_LONG_HEAD)
        if len(self.pipeline) > _MOST_PIPELINED:
            raise ValueError("the connection has too many requests")
        self._unfinished = 0
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unfinished = 0
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._silent_since = time.monotonic()
        super().on_response_complete()


class HttpServer(uvicorn.Server):
    """A server whose end answers every request that was sent before the listener closed.

    Each of these answers contains `Connection: close`. A connection that is idle for a second is then closed. Any
    thread may set `should_exit`, to make `run` end.
    """

    def __init__(self, app: HttpApp, flags: ScoreFlags) -> None:
        secure: dict[str, Any] = {}
        if flags.tls_cert:
            secure = {"ssl_certfile": flags.tls_cert, "ssl_keyfile": flags.tls_key}
        if flags.tls_client_ca:
            secure |= {"ssl_ca_certs": flags.tls_client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        config = uvicorn.Config(
            app,
            http=_Connection,
            interface="asgi3",
            lifespan="off",
            ws="none",
            log_config=None,  # The loggers of the process stay as they are.
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_SILENT_SECONDS,
            timeout_graceful_shutdown=max(round(flags.stop_secs), 1),
            backlog=_MOST_CONNECTIONS,
            **secure,
        )
        config.load()  # Now, because a certificate may be missing.
        super().__init__(config)
        self._app = app

    async def on_tick(self, counter: int) -> bool:
        self._look()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state, loop = self.server_state, asyncio.get_running_loop()
        listening = [each.dup() for each in sockets or []]
        for server in self.servers:
            server.close()
        accepted: list[socket.socket] = []
        for each in listening:
            with each, contextlib.suppress(OSError):  # Until no connection is left in the listener's queue.
                each.setblocking(False)
                while True:
                    accepted.append(each.accept()[0])
        state.default_headers.append((b"connection", b"close"))
        for connection in _connections(state):
            if not connection.is_idle:
                connection.shutdown()
        make = functools.partial(_Connection, self.config, state, {})
        joins = [loop.connect_accepted_socket(make, each, ssl=self.config.ssl) for each in accepted]
        joining = asyncio.gather(*joins, return_exceptions=True)
        until = loop.time() + _DRAIN_SECONDS
        while loop.time() < until and (state.connections or not joining.done()):
            await asyncio.sleep(_LOOK_SECONDS)
            self._look()
        joining.cancel()
        await super().shutdown(sockets)

    def _look(self) -> None:
        now = time.monotonic()
        self._app.look(now)
        for connection in _connections(self.server_state):
            connection.look(now)


def _connections(state: ServerState) -> list[_Connection]:
    return [each for each in state.connections if isinstance(each, _Connection)]
