"""The HTTP server of `score`: httptools' parser on asyncio, with limits that apply before a token, and an orderly end.

| limit | beyond it |
|---|---|
| `_MOST_HEAD_BYTES` of a URL with its headers, or of bytes between the parts of a chunked body | 400 |
| `max_body_bytes` of a body | 413 |
| `_MOST_LARGE_BODIES` bodies of this size in memory | 429 |
| `_BODY_SECONDS` from the headers to the end of the body | 408 |
| `_SILENT_SECONDS` from the start of a connection, or from its last answer, to the end of the next headers | closed |
| `_MOST_CONNECTIONS` connections | the longest idle one is closed, or the new one if none is idle |

A connection answers its requests one after the other, and reads no further while it answers.
"""

import asyncio
import collections
import contextlib
import email.utils
import functools
import http
import logging
import socket
import ssl
import time
import urllib.parse
from collections.abc import Callable

import httptools

from ctr_trainer.live.scoring.examples import LIMIT
from ctr_trainer.live.scoring.http_app import Answer, HttpApp, Request
from ctr_trainer.live.scoring.refusals import RequestRefused
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.messages.log_lines import Seldom

_log = logging.getLogger(__name__)
_MOST_HEAD_BYTES, _MOST_CONNECTIONS, _MOST_LARGE_BODIES = 32 << 10, 1024, 16
_READ_BYTES = 256 << 10
_PART_BYTES = 4 << 10  # The parser gets this much at a time, so that the bytes of an unfinished head are known.
# Longer than the idle timeout of common clients and load balancers, which could otherwise send on a closed connection.
_SILENT_SECONDS, _BODY_SECONDS = 75.0, 30.0
# After the listener closes, idle connections stay open for this long, because requests may be on their way. The rest of
# a refused body is read for as long, because a client may not read the answer before it has sent the body.
_DRAIN_SECONDS, _LOOK_SECONDS = 1.0, 0.05
_END = "\r\n"
_REASONS = {each.value: f"{each.value} {each.phrase}" for each in http.HTTPStatus}


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, server: "HttpServer") -> None:
        self._server, self._app = server, server.app
        self._parser = httptools.HttpRequestParser(self)
        self._rest = self._url = b""
        self._unfinished = 0  # Bytes since the last part of a body or end of a head.
        self._incoming: Request | None = None  # After its headers.
        self._head = Request()
        self._complete: collections.deque[Request] = collections.deque()
        self._current: Request | None = None  # The request that is being answered.
        self._is_full = self._is_ended = self._is_advancing = self._is_paused = False
        self.idle_since = time.monotonic()

    @property
    def is_idle(self) -> bool:
        return self._current is None and self._incoming is None and not self._complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        connections = self._server.connections
        connections.add(self)
        if len(connections) > _MOST_CONNECTIONS:
            self._server.seldom.warning("over %d HTTP connections: the longest idle one is closed", _MOST_CONNECTIONS)
            idle = [each for each in connections if each.is_idle and each is not self]
            min(idle, key=lambda each: each.idle_since, default=self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._is_ended = True
        for request in filter(None, (self._incoming, *self._complete)):
            self._server.release(request)
        if self._incoming is not None and self._incoming.refusal is None:
            self._server.seldom.warning("a client of %s hung up before the end of its request", self._incoming.path)
            self._app.note(self._incoming, 499)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.buffer  # Its bytes are parsed before the next connection gets it.

    def buffer_updated(self, nbytes: int) -> None:
        data = self._server.buffer[:nbytes]
        self._take(memoryview(self._rest + bytes(data)) if self._rest else data)

    def _take(self, data: memoryview) -> None:
        """Parses bytes until a request waits for the answer to an earlier one, and keeps the rest."""
        while data and not self._is_ended and not self._complete:
            incoming = self._incoming
            if incoming is not None and incoming.refusal is not None:
                data = data[:0]  # The rest of a refused request.
                break
            size = max(_PART_BYTES, incoming.length - len(incoming.body) if incoming else 0)
            part, data = data[:size], data[size:]
            self._unfinished += len(part)
            self._feed(part)
            if self._unfinished > _MOST_HEAD_BYTES:
                self._refuse(f"the URL and the headers have over {_MOST_HEAD_BYTES} bytes: send fewer")
            self._advance()
        self._rest = bytes(data)
        if not self._is_paused and (self._complete or self._incoming is not None and self._current is not None):
            self._is_paused = True
            self.transport.pause_reading()

    def _feed(self, part: memoryview) -> None:
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade as error:
            # The parser has skipped the body. The server answers by HTTP/1.1, as RFC 9110 allows.
            request, self._parser = self._complete.pop(), httptools.HttpRequestParser(self)
            if request.headers.pop("upgrade", None) is None:  # The method is CONNECT.
                self._incoming = request
                self._refuse(f"{request.method}: expected GET or POST")
                return
            lines = [
                f"{request.method} {self._url.decode('latin-1')} HTTP/1.1",
                *map(": ".join, request.headers.items()),
            ]
            self._feed(memoryview((_END.join(lines) + 2 * _END).encode("latin-1")))
            self._feed(part[error.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(f"not a request of HTTP/1.1: {error}")

    def _refuse(self, text: str, status: int = 400) -> None:
        """Refuses the request that arrives. Its answer ends the connection."""
        request = self._incoming = self._incoming or self._head
        if request.refusal is None:
            request.refusal, request.began = RequestRefused(text, status), request.began or time.monotonic()

    # The parser calls these methods.

    def on_message_begin(self) -> None:
        self._url, self._head = b"", Request()

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._incoming is None:  # Otherwise, it follows a chunked body.
            self._head.headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        request, parser, self._unfinished = self._head, self._parser, 0
        request.method, request.keeps_open = parser.get_method().decode(), parser.should_keep_alive()
        request.path = urllib.parse.unquote(self._url.partition(b"?")[0].decode("latin-1"))
        request.began, self._incoming = time.monotonic(), request
        try:
            request.length = int(request.headers.get("content-length", 0))
            self._app.admit(request)
            if request.length > self._server.most_body_bytes:
                self._server.refuse_body()
            if request.headers.get("expect", "").lower() == "100-continue" and not self._current:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        except RequestRefused as error:
            request.refusal = error

    def on_body(self, part: bytes) -> None:
        self._unfinished, request = 0, self._incoming
        assert request is not None
        if request.refusal is not None:
            return
        try:
            self._server.hold(request, part)
        except RequestRefused as error:
            request.refusal = error

    def on_message_complete(self) -> None:
        assert self._incoming is not None
        self._complete.append(self._incoming)
        self._unfinished, self._incoming, self._head = 0, None, Request()

    # Answers.

    def _advance(self) -> None:
        """Answers the requests that are complete or refused, in order."""
        if self._is_advancing:
            return
        self._is_advancing = True
        while self._current is None and not self._is_full and not self._is_ended:
            if self._complete:
                request = self._complete.popleft()
            elif self._incoming is not None and self._incoming.refusal is not None:
                request, self._incoming = self._incoming, None
                request.keeps_open = False
            else:
                break
            self._current = request
            try:
                if request.refusal is not None:
                    raise request.refusal
                self._app.answer(request, functools.partial(self._respond, request))
            except RequestRefused as error:
                self._respond(request, self._app.refused(error))
            except Exception:
                _log.exception("a request for %s failed", request.path)
                failure = RequestRefused("the server failed; its log says more", status=500)
                self._respond(request, self._app.refused(failure))
            finally:
                self._server.release(request)
        self._is_advancing = False
        if self._is_paused and self._current is None and not self._complete:
            self._is_paused = False
            self.transport.resume_reading()
            rest, self._rest = self._rest, b""
            self._take(memoryview(rest))

    def _respond(self, request: Request, answer: Answer) -> None:
        self._app.note(request, answer.status)
        if self.transport.is_closing():
            return
        ends = self._server.is_ending or not request.keeps_open
        head = (
            f"HTTP/1.1 {_REASONS[answer.status]}\r\ndate: {self._server.date}\r\ncontent-type: {answer.kind}\r\n"
            f"content-length: {len(answer.body)}\r\n"
            f"{''.join([f'{name.lower()}: {value}' + _END for name, value in answer.headers.items()])}"
            f"{'connection: close' + _END if ends else ''}\r\n"
        )
        self.transport.write(head.encode() if request.method == "HEAD" else head.encode() + answer.body)
        self._current, self.idle_since, self._is_ended = None, time.monotonic(), ends
        if ends and (request.refusal is None or answer.status == 400):
            self.transport.close()
        elif not ends:
            self._advance()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._advance()

    def look(self, now: float) -> None:
        """Ends what has lasted too long."""
        incoming = self._incoming
        if self._is_ended:
            if now > self.idle_since + _DRAIN_SECONDS:
                self.transport.close()
        elif self._current is None and incoming is not None and incoming.refusal is None:
            if now > max(incoming.began, self.idle_since) + _BODY_SECONDS:
                self._refuse(f"the body did not arrive within {_BODY_SECONDS:g} s", status=408)
                self._advance()
        elif self._current is None and now > self.idle_since + _SILENT_SECONDS:
            self.transport.abort()


class HttpServer:
    """A server whose end answers every request that was sent before the listener closed.

    Each of these answers contains `Connection: close`. A connection that is idle for a second is then closed.

    Attributes:
      is_ending: whether each answer ends its connection.
      should_exit: any thread may set it, to make `run` end.
    """

    def __init__(self, app: HttpApp, flags: ScoreFlags) -> None:
        self.app, self.most_body_bytes, self._stop_secs = app, flags.limits.max_body_bytes, flags.stop_secs
        self.connections: set[_Connection] = set()
        self.should_exit = self.is_ending = False
        self.seldom = Seldom(_log)
        self.date, self._held_bytes, self.buffer = "", 0, memoryview(bytearray(_READ_BYTES))
        self._secure: ssl.SSLContext | None = None
        if flags.tls_cert:
            self._secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._secure.load_cert_chain(flags.tls_cert, flags.tls_key)
            if flags.tls_client_ca:
                self._secure.load_verify_locations(flags.tls_client_ca)
                self._secure.verify_mode = ssl.CERT_REQUIRED

    def run(self, listening: socket.socket) -> None:
        """Serves until `should_exit`."""
        asyncio.run(self._serve(listening))

    def hold(self, request: Request, part: bytes) -> None:
        """Appends a part to the body of a request, which counts as held until `release`. Raises RequestRefused."""
        if len(request.body) + len(part) > self.most_body_bytes:
            self.refuse_body()
        if self._held_bytes + len(part) > _MOST_LARGE_BODIES * self.most_body_bytes:
            raise RequestRefused(
                "the bodies of too many requests arrive at the same time: send the request again later", status=429
            )
        self._held_bytes += len(part)
        request.body += part

    def release(self, request: Request) -> None:
        self._held_bytes -= len(request.body)
        request.body = bytearray()

    def refuse_body(self) -> None:
        text = f"the body has over {self.most_body_bytes} bytes, {LIMIT}: send fewer examples at a time"
        raise RequestRefused(text, status=413)

    async def _serve(self, listening: socket.socket) -> None:
        self._look()
        loop, make = asyncio.get_running_loop(), functools.partial(_Connection, self)
        server = await loop.create_server(make, sock=listening, ssl=self._secure, backlog=_MOST_CONNECTIONS)
        while not self.should_exit:
            await asyncio.sleep(_LOOK_SECONDS)
            self._look()
        self.is_ending = True
        loop.remove_reader(listening)
        await asyncio.sleep(_LOOK_SECONDS)  # For the connections that asyncio has already accepted.
        # No await from here to `close`, so that no connection is left in the listener's queue.
        accepted: list[socket.socket] = []
        with contextlib.suppress(OSError):  # Until none is left.
            while True:
                accepted.append(listening.accept()[0])
        server.close()
        joins = [loop.connect_accepted_socket(make, each, ssl=self._secure) for each in accepted]
        joining = asyncio.gather(*joins, return_exceptions=True)
        await self._look_until(loop.time() + _DRAIN_SECONDS, lambda: not self.connections and joining.done())
        joining.cancel()
        for each in [each for each in self.connections if each.is_idle]:
            each.transport.close()
        await self._look_until(loop.time() + max(self._stop_secs, 1.0), lambda: not self.connections)
        for each in [*self.connections]:
            each.transport.abort()
        await asyncio.sleep(0)  # For the end of these connections.

    async def _look_until(self, deadline: float, is_over: Callable[[], bool]) -> None:
        while time.monotonic() < deadline and not is_over():
            await asyncio.sleep(_LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        now, self.date = time.monotonic(), email.utils.formatdate(usegmt=True)
        self.app.look(now)
        for connection in [*self.connections]:
            connection.look(now)
