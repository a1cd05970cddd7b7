"""The HTTP server of `score`: uvicorn with h11, with limits that apply before a token, and an orderly shutdown.

| limit | beyond it |
|---|---|
| `_MOST_HEAD_BYTES` of a URL with its headers, or of what follows a chunked body | 400 |
| `_SILENT_SECONDS` from the start of a connection, or from its last answer, to the end of the next headers | closed |
| `_MOST_CONNECTIONS` connections | the longest idle one is closed, or the new one if none is idle |

`http_app` limits the bytes of a body and its time. h11 reads a request only after the answers to the earlier requests
of its connection.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ctr_trainer.live.scoring.http_app import HttpApp
from ctr_trainer.settings.command_flags import ScoreFlags
from ctr_trainer.system.messages.log_lines import Seldom

_seldom = Seldom(logging.getLogger(__name__))
_MOST_HEAD_BYTES, _MOST_CONNECTIONS = 32 << 10, 1024
# Longer than the idle timeout of common clients and load balancers, which could otherwise send on a closed connection.
_SILENT_SECONDS = 75
# After the listener closes, idle connections stay open for this long, because requests may be on their way.
_DRAIN_SECONDS, _LOOK_SECONDS = 1.0, 0.05


class _Connection(H11Protocol):
    """uvicorn's connection, whose keep-alive timer also ends silent connections and headers that never end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # As uvicorn does.
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS:
            _seldom.warning("over %d HTTP connections: the longest idle one is closed", _MOST_CONNECTIONS)
            idle = {
                each.timeout_keep_alive_task.when(): each
                for each in self.connections
                if isinstance(each, H11Protocol) and each.timeout_keep_alive_task and not each.transport.is_closing()
            }
            (idle[min(idle)] if idle else self).transport.abort()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Does what uvicorn does, except that the timer runs until the headers are complete."""
        self.conn.receive_data(data)
        self.handle_events()


class HttpServer(uvicorn.Server):
    """A uvicorn server whose shutdown answers every request that was sent before the listener closed.

    Each of these answers contains `Connection: close`. A connection that is idle for a second is then closed.
    """

    def __init__(self, app: HttpApp, flags: ScoreFlags) -> None:
        secure: dict[str, Any] = {}
        if flags.tls_cert:
            secure = {"ssl_certfile": flags.tls_cert, "ssl_keyfile": flags.tls_key}
        if flags.tls_client_ca:
            secure |= {"ssl_ca_certs": flags.tls_client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
        super().__init__(
            uvicorn.Config(
                app,
                http=_Connection,
                h11_max_incomplete_event_size=_MOST_HEAD_BYTES,
                log_config=None,
                access_log=False,
                log_level="error",
                lifespan="off",
                ws="none",
                proxy_headers=False,
                timeout_keep_alive=_SILENT_SECONDS,
                server_header=False,
                backlog=_MOST_CONNECTIONS,
                timeout_graceful_shutdown=max(round(flags.stop_secs), 1),
                **secure,
            )
        )
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.is_ending = True
        loop = asyncio.get_running_loop()
        for listening in sockets or []:
            loop.remove_reader(listening)
        await asyncio.sleep(_LOOK_SECONDS)  # For the connections that asyncio has already accepted.
        # No await from here to `close`, so that no connection is left in the listener's queue.
        accepted: list[socket.socket] = []
        for listening in sockets or []:
            with contextlib.suppress(OSError):  # Until none is left.
                while True:
                    accepted.append(listening.accept()[0])
        for server in self.servers:
            server.close()
        joining = asyncio.gather(*map(self._join, accepted), return_exceptions=True)
        until = loop.time() + _DRAIN_SECONDS
        while loop.time() < until and (self.server_state.connections or not joining.done()):
            await asyncio.sleep(_LOOK_SECONDS)
        joining.cancel()
        await super().shutdown(sockets)

    async def _join(self, connection: socket.socket) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: _Connection(config=self.config, server_state=self.server_state, app_state=self.lifespan.state),
            connection,
            ssl=self.config.ssl,
        )
