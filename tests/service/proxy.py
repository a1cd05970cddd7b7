"""A TCP proxy that cuts connections on request."""

import contextlib
import socket
import threading


class CuttingProxy:
    """Forwards connections to `target` ("host:port").

    Args:
      target: where the connections go.
      port: where it listens; 0 picks a port.

    Attributes:
      address: where it listens.
      connections: how many it has accepted.
    """

    def __init__(self, target, port=0):
        host, to = target.split(":")
        self._target = (host, int(to))
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        self.cuts = 0
        self._cut_after = {}
        self._sockets = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, upward=None, downward=None):
        """Cuts the connection, once, after so many more bytes to the service, or from it."""
        self._cut_after = {"up": upward, "down": downward}

    def cut(self):
        """Cuts all connections, and takes new ones."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            _close(each)

    def close(self):
        """Ends all connections and listens no more."""
        _close(self._listener)
        self.cut()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                service = socket.create_connection(self._target)
                self.connections += 1
                self._sockets += [client, service]
                for source, sink, way in ((client, service, "up"), (service, client, "down")):
                    threading.Thread(target=self._forward, args=(source, sink, way), daemon=True).start()

    def _forward(self, source, sink, way):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                left = self._cut_after.get(way)
                if left is not None:
                    self._cut_after[way] = left - len(data)
                    if left < len(data):
                        self._cut_after = {}
                        self.cuts += 1
                        sink.sendall(data[:left])
                        break
                sink.sendall(data)
        _close(source)
        _close(sink)


def _close(each):
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
