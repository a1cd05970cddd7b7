"""The next start of the workers, prepared while the current workers train: they wait at a gate."""

import contextlib
import socket
import sys
import threading

GATE = "CTR_TRAINER_GATE"
_GO = b"g"
_BACKLOG = 1024


class StartingGate:
    """A port of this host at which workers wait. If this process ends, so do they.

    Attributes:
      address: `host:port`, for `wait_at`.
    """

    def __init__(self):
        self._server = socket.create_server(("127.0.0.1", 0), backlog=_BACKLOG)
        self.address = "{}:{}".format(*self._server.getsockname())

    def open(self):
        """Lets the workers begin that wait, and those that come later."""
        threading.Thread(target=self._let_in, name="gate", daemon=True).start()

    def close(self):
        """Ends the workers that still wait."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # Wakes the thread.
        self._server.close()

    def _let_in(self):
        with contextlib.suppress(OSError):  # It was closed.
            while True:
                worker, _ = self._server.accept()
                with worker, contextlib.suppress(OSError):  # That worker was killed.
                    worker.sendall(_GO)


def wait_at(address):
    """Returns when the gate is opened; ends this process if the gate is closed or its process ends."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port))) as gate:
            gate.settimeout(None)  # The launcher may train for days; its end ends the connection.
            if gate.recv(1) == _GO:
                return
    except OSError:
        pass
    sys.exit("the launcher has ended")


class Standby:
    """Workers that have imported all they need, TensorFlow first, and wait at a gate: half of the time of a restart.

    Args:
      start: f(hosts, gate) -> `Attempt`, on hosts that are this one.
    """

    def __init__(self, start):
        self._start = start
        self._attempt = self._gate = None

    def prepare(self, hosts):
        """Starts workers that wait, unless there are some or there were some that have ended."""
        if self._attempt is None:
            self._gate = StartingGate()
            self._attempt = self._start(hosts, self._gate)

    def take(self, hosts):
        """-> an `Attempt` with these hosts, whose workers begin now; None if there is none."""
        attempt = self._attempt
        if attempt is None or attempt.hosts != hosts or attempt.has_ended:
            self.close()
            return None
        self._attempt = self._gate = None
        attempt.release()
        return attempt

    def close(self):
        """Ends the workers that wait."""
        if self._attempt is not None:
            self._gate.close()
            self._attempt.end(0.0)
            self._attempt = self._gate = None
