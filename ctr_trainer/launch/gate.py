"""Lets workers of this host wait until they may begin."""

import contextlib
import socket
import sys
import threading

GATE = "CTR_TRAINER_GATE"
_GO = b"g"
_BACKLOG = 1024


class StartingGate:
    """A port of this host at which workers wait. If this process ends, the waiting workers end as well.

    Attributes:
      address: `host:port`, for `wait_at`.
    """

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.address = "{}:{}".format(*self._server.getsockname())

    def open(self) -> None:
        """Releases the waiting workers, and workers that arrive later."""
        threading.Thread(target=self._let_in, name="gate", daemon=True).start()

    def close(self) -> None:
        """Ends the workers that still wait."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # Wakes the thread.
        self._server.close()

    def _let_in(self) -> None:
        with contextlib.suppress(OSError):  # The gate was closed.
            while True:
                worker, _ = self._server.accept()
                with worker, contextlib.suppress(OSError):  # The worker was killed.
                    worker.sendall(_GO)


def wait_at(address: str) -> None:
    """Returns when the gate is opened; ends this process if the gate is closed or its process ends."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port))) as gate:
            gate.settimeout(None)  # The wait may take days. If the launcher ends, the connection ends.
            if gate.recv(1) == _GO:
                return
    except OSError:
        pass
    sys.exit("the launcher has ended")
