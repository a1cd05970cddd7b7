"""The HTTP server of `score`: uvicorn with limits that apply before a token, and a shutdown that loses no request.

| limit | beyond it |
|---|---|
| `_MOST_URL_BYTES` of a URL | 414 |
| `_MOST_HEAD_BYTES`, `_MOST_HEADERS` of headers, including those after a chunked body | 431 |
| `_HEAD_SECONDS` from a request's first byte to the end of its headers, `_BODY_SECONDS` to the end of its body | 408 |
| `_MOST_PIPELINED` requests that wait on a connection | 429 |
| `ConnectionLimits.most` connections | the longest idle connection is closed; 503 if none is idle |

A refusal follows the answers to the earlier requests of its connection, and ends the connection. Without these limits,
httptools buffers a header of any length, and uvicorn limits requests but not silent connections.
"""

import asyncio
import contextlib
import http
import logging
import resource
import socket
from typing import Any

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
_MOST_URL_BYTES, _MOST_HEAD_BYTES, _MOST_HEADERS = 8 << 10, 32 << 10, 128
_HEAD_SECONDS, _BODY_SECONDS = 10.0, 30.0
_MOST_PIPELINED = 16
_MOST_CONNECTIONS, _SHARE_OF_DESCRIPTORS = 1024, 4
# After a refusal, a connection stays open for this long, because a reset could overtake the answer.
_LINGER_SECONDS = 0.5
# After the listener closes, idle connections stay open for this long, because requests may be on their way.
_DRAIN_SECONDS, _LOOK_SECONDS = 1.0, 0.05
# Longer than the idle timeout of common clients and load balancers, which could otherwise send on a closed connection.
_KEEP_ALIVE_SECONDS = 75


class ConnectionLimits(ServerState):
    """The state that the connections of a server share.

    Attributes:
      most: limit of the number of connections.
      is_ending: whether each answer ends its connection.
      log: the log of clients' errors.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.is_ending, self.log = most, False, Seldom(_log)


class HttpConnection(HttpToolsProtocol):
    """uvicorn's httptools protocol with the limits of this module."""

    server_state: ConnectionLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn does.
        super().connection_made(transport)
        self._refusal = b""  # An error that is sent after the answers to earlier requests.
        self._bytes_without_progress = 0
        self._deadline: asyncio.TimerHandle | None = None
        self._idle_since = self.loop.time()
        if len(self.connections) > self.server_state.most:
            self._make_room()
        self._within(_HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self._within(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal:
            return
        self._unset_keepalive_if_required()
        self._bytes_without_progress += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # The server accepts no other protocol, and answers the request as HTTP.
        except httptools.HttpParserError as error:
            self._refuse(*_reason(error))
        else:
            if self._bytes_without_progress > _MOST_HEAD_BYTES:
                self._refuse(431, f"the headers have over {_MOST_HEAD_BYTES} bytes: send fewer")

    def on_message_begin(self) -> None:
        self._bytes_without_progress = 0
        self._within(_HEAD_SECONDS)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.url) > _MOST_URL_BYTES:
            raise _Refused(414, f"the URL has over {_MOST_URL_BYTES} bytes: send the examples as the body")
        size = sum(len(name) + len(value) for name, value in self.headers)
        if size > _MOST_HEAD_BYTES or len(self.headers) > _MOST_HEADERS:
            raise _Refused(431, f"over {_MOST_HEADERS} headers, or over {_MOST_HEAD_BYTES} bytes of them: send fewer")
        if len(self.pipeline) >= _MOST_PIPELINED:
            raise _Refused(429, f"over {_MOST_PIPELINED} requests wait on this connection: wait for their answers")
        self._bytes_without_progress = 0
        self._within(_BODY_SECONDS)
        super().on_headers_complete()
        if self.server_state.is_ending:
            self.cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._bytes_without_progress = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._bytes_without_progress = 0
        self._within(None)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        if self._refusal and not self.pipeline:
            self._end()
        else:
            super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether no request of this connection is being answered."""
        return self.cycle is None or (self.cycle.response_complete and not self.pipeline)

    def _make_room(self) -> None:
        """Closes the longest idle connection, or refuses this connection if no other is idle."""
        state = self.server_state
        state.log.warning("over %d HTTP connections: idle ones are closed", state.most)
        others = [each for each in self.connections if isinstance(each, HttpConnection) and each is not self]
        idle = [each for each in others if each.is_idle]
        if not idle:
            self._refuse(503, f"all {state.most} connections have running requests: try again later")
            return
        oldest = min(idle, key=lambda each: each._idle_since)
        self.connections.discard(oldest)
        oldest.transport.abort()

    def _within(self, seconds: float | None) -> None:
        """Sets the time within which the client must send the current part; None for no limit."""
        if self._deadline is not None:
            self._deadline.cancel()
        late = (408, "the request did not arrive in time")
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._refuse, *late)

    def _refuse(self, status: int, text: str) -> None:
        """Ends the connection with an error after the answers to earlier requests, or without it in an answer."""
        if self._refusal or self.transport.is_closing():
            return
        self._within(None)
        self.server_state.log.warning("an HTTP connection is closed with status %d: %s", status, text)
        head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        length = f"content-length: {len(text)}\r\nconnection: close\r\n\r\n"
        self._refusal = (head + length + text).encode("ascii")
        is_answering = not self.is_idle
        if is_answering and self.cycle.more_body:  # The newest request is the refused one.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.pipeline:
                self.pipeline.popleft()
            elif self.cycle.response_started:
                self.transport.close()
            else:
                self._end()
        elif not is_answering:
            self._end()

    def _end(self) -> None:
        """Sends the refusal, and closes the connection once the client had time to read it."""
        self.transport.write(self._refusal)
        self.flow.pause_reading()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)


class _Refused(Exception):
    """A request is beyond a limit; `args` are the arguments of `HttpConnection._refuse`."""


def _reason(error: BaseException) -> tuple[int, str]:
    """Returns the status and the text for an error of the parser, which may be caused by a `_Refused`."""
    cause = error.__context__
    return cause.args if isinstance(cause, _Refused) else (400, "this is not an HTTP request")


class HttpServer(uvicorn.Server):
    """A uvicorn server whose shutdown answers every request that was sent before the listener closed.

    Each of these answers contains `Connection: close`. A connection that is idle for a second is then closed.

    Args:
      stop_secs: longest time that running requests may take at the shutdown.
      secure: uvicorn's settings for TLS.
    """

    def __init__(self, app: ASGIApp, stop_secs: float, secure: dict[str, Any]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=HttpConnection,
                log_config=None,
                access_log=False,
                log_level="warning",
                lifespan="off",
                ws="none",
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                server_header=False,
                backlog=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=max(round(stop_secs), 1),
                **secure,
            )
        )
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(min(_MOST_CONNECTIONS, descriptors // _SHARE_OF_DESCRIPTORS), 1)
        self._limits = self.server_state = ConnectionLimits(most)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._limits.is_ending = True
        # No await from here to `close`, so that no connection is left in the listener's queue.
        accepted = [each for listening in sockets or [] for each in _accepted(listening)]
        for server in self.servers:
            server.close()
        joining = asyncio.gather(*map(self._join, accepted), return_exceptions=True)
        for connection in self._limits.connections:
            if isinstance(connection, HttpConnection) and not connection.is_idle:
                connection.shutdown()  # Closes it after the current answer.
        loop = asyncio.get_running_loop()
        until = loop.time() + _DRAIN_SECONDS
        while self._limits.connections and loop.time() < until:
            await asyncio.sleep(_LOOK_SECONDS)
        joining.cancel()
        await super().shutdown(sockets)

    async def _join(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: HttpConnection(config=self.config, server_state=self._limits, app_state=self.lifespan.state),
            connection,
            ssl=self.config.ssl,
        )


def _accepted(listening: socket.socket) -> list[socket.socket]:
    """Returns the connections that wait in the listener's queue."""
    found = []
    with contextlib.suppress(OSError):
        while True:
            found.append(listening.accept()[0])
    for connection in found:
        connection.setblocking(False)
    return found
