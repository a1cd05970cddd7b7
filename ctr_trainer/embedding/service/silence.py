"""Notices when a service does not answer its clients."""

import contextlib
import math
import threading
import time

from ctr_trainer.processes.watchdog import Watchdog

# An answer takes milliseconds; after this many seconds the service counts as silent.
LIMIT_SECONDS = 5.0


class Silence:
    """Names a service in the log while it does not answer, and adds up how long it did not.

    A service that stands still (stopped, swapped out, on a host that hangs) looks like slow input or slow syncs to the
    worker whose requests wait.

    Args:
      address: of the service, for the message.
      timeout: seconds that a request waits at most.

    Attributes:
      seconds: how long, in total, at least one request waited that waited for longer than the limit.
    """

    def __init__(self, address, timeout):
        self._watchdog = Watchdog("this worker", math.inf, warning=LIMIT_SECONDS)
        self._watchdog.explain = lambda: (
            "it stands still, or its host or the network does; the job ends where that lasts longer than "
            f"--service_timeout={timeout:g} s"
        )
        self._address = address
        self._lock = threading.Lock()
        self._counted_until = -math.inf
        self.seconds = 0.0

    @contextlib.contextmanager
    def waiting(self, request):
        """Watches the body of the `with`, one request."""
        began = time.monotonic()
        try:
            with self._watchdog.waiting(f"the embedding service {self._address} to answer `{request}`"):
                yield
        finally:
            ended = time.monotonic()
            if ended - began > LIMIT_SECONDS:
                with self._lock:  # Of requests that wait side by side each second counts once.
                    self.seconds += max(ended - max(began, self._counted_until), 0.0)
                    self._counted_until = ended

    def close(self):
        """Ends the watch."""
        self._watchdog.close()
