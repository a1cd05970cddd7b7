"""The HTTP server process of `score`: uvicorn, with limits on connections and an end that loses no request."""

import asyncio
import contextlib
import resource
import socket

import uvicorn

from ctr_trainer.scoring.http_protocol import ConnectionLimits, HttpConnection

_BACKLOG = 2048
# How many connections are accepted before those that were accepted are looked at, so that limits hold in between.
_ACCEPTED_AT_A_TIME = 32
_MOST_CONNECTIONS, _SHARE_OF_DESCRIPTORS = 1024, 4
# How long idle connections are still read after the listener has closed: what was sent before that is on its way.
_DRAIN_SECONDS, _LOOK_SECONDS = 1.0, 0.05
# Beyond the idle time of the clients and load balancers in use, which else find a connection closed as they send.
_KEEP_ALIVE_SECONDS = 75


def raise_descriptor_limit() -> None:
    """Lets this process have as many descriptors as its hard limit allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def http_config(app: object, stop_secs: float, secure: dict) -> uvicorn.Config:
    """Returns uvicorn's settings.

    Args:
      app: the ASGI application.
      stop_secs: how long requests under way may take to end.
      secure: the settings of TLS.
    """
    return uvicorn.Config(
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


class HttpServer(uvicorn.Server):
    """A uvicorn server that answers, at its end, every request that was sent before its listener closed.

    Each of these answers says `Connection: close`. A connection on which nothing arrives is closed a second later, and
    only if no unread byte lies in it: the kernel resets a connection that is closed with unread bytes.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(min(_MOST_CONNECTIONS, descriptors // _SHARE_OF_DESCRIPTORS), 1)
        self._limits = ConnectionLimits(most)
        self.server_state = self._limits

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(_BACKLOG)  # asyncio has taken the number of a round for the queue's length.

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._limits.is_ending = True
        # No await from here to `close`, so that no connection is left in the listener's queue.
        accepted = [each for listening in sockets or [] for each in _accepted(listening)]
        for server in self.servers:
            server.close()
        joining = asyncio.gather(*map(self._join, accepted), return_exceptions=True)
        for connection in self._limits.connections - self._limits.idle.keys():
            connection.shutdown()  # It ends with the answer under way.
        loop = asyncio.get_running_loop()
        quiet, latest = loop.time() + _DRAIN_SECONDS, loop.time() + self.config.timeout_graceful_shutdown
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
