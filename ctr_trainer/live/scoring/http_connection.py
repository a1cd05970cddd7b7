"""The HTTP connections of `score`: uvicorn's protocol with limits that apply before a token is checked.

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
import fcntl
import http
import logging
import struct
import termios

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ctr_trainer.system.messages.log_lines import Seldom

_MOST_URL_BYTES, _MOST_HEAD_BYTES, _MOST_HEADERS = 8 << 10, 32 << 10, 128
_HEAD_SECONDS, _BODY_SECONDS = 10.0, 30.0
# Requests of a connection that may wait while an earlier one is answered.
_MOST_PIPELINED = 16
# After a refusal, a connection is still read for this long, because a reset could overtake the answer.
_LINGER_SECONDS, _MOST_LINGERING_BYTES = 2.0, 1 << 20
_log = logging.getLogger(__name__)


class ConnectionLimits(ServerState):
    """The state that the connections of a server share.

    Attributes:
      most: limit of the number of connections.
      idle: the connections without a running request, the longest idle first.
      is_ending: whether each answer ends its connection.
      log: the log of clients' errors.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.idle: dict[HttpConnection, None] = {}
        self.is_ending = False
        self.log = Seldom(_log)


class HttpConnection(HttpToolsProtocol):
    """uvicorn's httptools protocol with the limits of this module."""

    server_state: ConnectionLimits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn does.
        super().connection_made(transport)
        self._is_refused = self._is_in_head = False
        self._url_bytes = self._head_bytes = self._bytes_without_progress = 0
        self._wrong: tuple[int, str] | None = None
        self._refusal = b""  # An error that is sent after the answers to earlier requests.
        self._deadline: asyncio.TimerHandle | None = None
        self._become_idle()
        if len(self.connections) > self.server_state.most:
            self._make_room()
        self._within(_HEAD_SECONDS)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.idle.pop(self, None)
        self._within(None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # Otherwise uvicorn keeps the timer and its references after a reset.

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            self._bytes_without_progress += len(data)
            if self._refusal:
                self.flow.pause_reading()  # uvicorn resumes reading at each answer.
            elif self._bytes_without_progress > _MOST_LINGERING_BYTES:
                self.transport.abort()
            return
        self._unset_keepalive_if_required()
        if self._deadline is None and self in self.server_state.idle:
            self._within(_HEAD_SECONDS)
        self._bytes_without_progress += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # The server accepts no other protocol, and answers the request as HTTP.
        except httptools.HttpParserError:
            self._refuse(*(self._wrong or (400, "this is not an HTTP request")))
        else:
            if self._bytes_without_progress > _MOST_HEAD_BYTES:
                self._refuse(431, f"the headers have over {_MOST_HEAD_BYTES} bytes: send fewer")

    def on_message_begin(self) -> None:
        self._is_in_head = True
        self._within(_HEAD_SECONDS)
        self._url_bytes = self._head_bytes = self._bytes_without_progress = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._url_bytes += len(url)
        if self._url_bytes > _MOST_URL_BYTES:
            self._wrong = (414, f"the URL has over {_MOST_URL_BYTES} bytes: send the examples as the body")
            raise ValueError("the URL is too long")
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > _MOST_HEAD_BYTES or len(self.headers) >= _MOST_HEADERS:
            text = f"there are over {_MOST_HEADERS} headers, or over {_MOST_HEAD_BYTES} bytes of them: send fewer"
            self._wrong = (431, text)
            raise ValueError("the headers are too long")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._bytes_without_progress = 0
        if len(self.pipeline) >= _MOST_PIPELINED:
            self._wrong = (429, f"over {_MOST_PIPELINED} requests wait on this connection: wait for their answers")
            raise ValueError("too many requests wait")
        self.server_state.idle.pop(self, None)
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
        is_last = not self.pipeline
        super().on_response_complete()
        if self.transport.is_closing() or not is_last:
            return
        if self._is_refused:
            self._end()
        else:
            self._become_idle()

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():
            self.transport.abort()  # `close` would wait for a client that does not read its answer.
        super().timeout_keep_alive_handler()

    def has_unread_bytes(self) -> bool:
        """Returns whether bytes have arrived that this process has not read."""
        if self.transport.is_closing():
            return False
        count = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.FIONREAD, bytes(4))
        return struct.unpack("i", count)[0] > 0

    def _become_idle(self) -> None:
        self.server_state.idle.pop(self, None)
        self.server_state.idle[self] = None

    def _make_room(self) -> None:
        """Closes the longest idle connection, or refuses this connection if no other is idle."""
        self.server_state.log.warning("over %d HTTP connections: idle ones are closed", self.server_state.most)
        oldest = next(iter(self.server_state.idle))
        if oldest is self:
            self._refuse(503, f"all {self.server_state.most} connections have running requests: try again later")
            return
        self.server_state.idle.pop(oldest)
        self.connections.discard(oldest)
        oldest.transport.abort()

    def _within(self, seconds: float | None) -> None:
        """Sets the time within which the client must send the current part; None for no limit."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self._took_too_long)

    def _took_too_long(self) -> None:
        self._deadline = None
        if self in self.server_state.idle and not self._is_in_head:
            self.transport.close()  # A connection that has sent nothing needs no answer.
        else:
            self._refuse(408, "the request did not arrive in time")

    def _refuse(self, status: int, text: str) -> None:
        """Ends the connection with an error after the answers to earlier requests, or without it in an answer."""
        if self._is_refused or self.transport.is_closing():
            return
        self._is_refused = True
        self._within(None)
        self.server_state.log.warning("an HTTP connection is closed with status %d: %s", status, text)
        head = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\ncontent-type: text/plain; charset=utf-8\r\n"
        length = f"content-length: {len(text)}\r\nconnection: close\r\n\r\n"
        self._refusal = (head + length + text).encode("ascii")
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and self.cycle.more_body:  # This request is the refused one.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.pipeline:
                self.pipeline.popleft()
            else:
                is_answering = False
                if self.cycle.response_started:
                    self._refusal = b""
        if not is_answering:
            self._end()

    def _end(self) -> None:
        """Sends the refusal, and closes the connection once the client had time to read it."""
        self.transport.write(self._refusal)
        self._refusal, self._bytes_without_progress = b"", 0
        self._become_idle()
        if not self.transport.can_write_eof():
            self.transport.close()
            return
        with contextlib.suppress(OSError):
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_SECONDS, self.transport.abort)
