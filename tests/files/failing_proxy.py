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
      failing: text in a request that is answered by 503 each time, as the name of an object.

    Attributes:
      address: its own `host:port`.
      failed: how many connections have failed.
      sent_bytes: size of all answers.
    """

    def __init__(self, target: tuple[str, int], failures: int = 0, failing: str = "") -> None:
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
                    asking = threading.Thread(target=_ask, args=(self.request, store, failing), daemon=True)
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


def _ask(source: socket.socket, target: socket.socket, failing: str) -> None:
    """Copies requests to the store until one has the text `failing` in it, which is answered here."""
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK):
            if failing and failing.encode() in block:
                source.sendall(_FAILURE)
                break
            target.sendall(block)
    for each in (target, source) if failing else (target,):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_WR)


def _copy(source, target, counter=None):
    """Copies what a connection says to another one, until it ends."""
    with contextlib.suppress(OSError):
        while block := source.recv(_BLOCK):
            if counter:
                counter.sent_bytes += len(block)
            target.sendall(block)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
