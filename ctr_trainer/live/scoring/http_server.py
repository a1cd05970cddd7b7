"""The HTTP server of `score`: uvicorn with the limits of `http_connection`, and a shutdown that loses no request."""

import asyncio
import contextlib
import resource
import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ctr_trainer.live.scoring.http_connection import ConnectionLimits, HttpConnection

_BACKLOG = 2048
# Number of connections that are accepted per round. The limits are checked between two rounds.
_ACCEPTED_AT_A_TIME = 32
_MOST_CONNECTIONS, _SHARE_OF_DESCRIPTORS = 1024, 4
# After the listener closes, idle connections are still read for this long, because requests may be on their way.
_DRAIN_SECONDS, _LOOK_SECONDS = 1.0, 0.05
# Longer than the idle timeout of common clients and load balancers, which could otherwise send on a closed connection.
_KEEP_ALIVE_SECONDS = 75


class HttpServer(uvicorn.Server):
    """A uvicorn server whose shutdown answers every request that was sent before the listener closed.

    Each of these answers contains `Connection: close`. An idle connection is closed after a second, and only if it has
    no unread bytes, because the kernel resets a connection that is closed with unread bytes.

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
                backlog=_ACCEPTED_AT_A_TIME,
                timeout_graceful_shutdown=max(round(stop_secs), 1),
                **secure,
            )
        )
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(min(_MOST_CONNECTIONS, descriptors // _SHARE_OF_DESCRIPTORS), 1)
        self._limits = self.server_state = ConnectionLimits(most)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)  # asyncio has set the queue's length to `backlog`.

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._limits.is_ending = True
        # No await from here to `close`, so that no connection is left in the listener's queue.
        accepted = [each for listening in sockets or [] for each in _accepted(listening)]
        for server in self.servers:
            server.close()
        joining = asyncio.gather(*map(self._join, accepted), return_exceptions=True)
        for connection in self._limits.connections - self._limits.idle.keys():
            connection.shutdown()  # Closes it after the current answer.
        loop = asyncio.get_running_loop()
        quiet, latest = loop.time() + _DRAIN_SECONDS, loop.time() + (self.config.timeout_graceful_shutdown or 0)
        while self._limits.connections and loop.time() < latest:
            if loop.time() >= quiet:
                for connection in list(self._limits.idle):
                    if not connection.has_unread_bytes():
                        connection.transport.close()
                if not self._limits.idle:
                    break
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
