"""A proxy before an object store that has requests fail."""

import contextlib
import socket
import socketserver
import threading

_FAILURE = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_BLOCK = 1 << 16


class FailingProxy:
    """Hands connections on to a store, but for the first ones, whose request gets the answer 503; a context manager.

    Args:
      target: (host, port) of the store.
      failures: how many connections are still to fail.

    Attributes:
      address: its own `host:port`.
      failed: how many connections have failed.
      sent_bytes: size of all answers.
    """

    def __init__(self, target, failures=0):
        self.failed, self.sent_bytes = 0, 0
        proxy, lock = self, threading.Lock()

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                with lock:
                    fails = proxy.failed < failures
                    proxy.failed += fails
                if fails:
                    self.request.recv(_BLOCK)
                    self.request.sendall(_FAILURE)
                    return
                with socket.create_connection(target, timeout=30) as store:
                    asking = threading.Thread(target=_copy, args=(self.request, store), daemon=True)
                    asking.start()
                    _copy(store, self.request, proxy)
                    asking.join(30)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = "{}:{}".format(*self._server.server_address)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._server.server_close()


def _copy(source, target, counter=None):
    """Copies what a connection says to another one, until it ends."""
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK):
            if counter:
                counter.sent_bytes += len(block)
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
