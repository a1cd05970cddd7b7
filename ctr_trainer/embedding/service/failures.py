"""What the errors and the silence of a service mean to its clients."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.service import wire
from ctr_trainer.system.messages.errors import Lost, ServiceLost, UserError
from ctr_trainer.system.processes.watchdog import Watchdog

# An answer takes milliseconds; after this many seconds the service counts as silent.
LIMIT_SECONDS = 5.0


class Held(Exception):
    """Another training holds the lease; see `lease.LeaseHeld`."""

    def __init__(self, holder: str, heard: float, left: float) -> None:
        super().__init__(holder)
        self.holder, self.heard, self.left = holder, heard, left


@contextlib.contextmanager
def meanings(address: str) -> Iterator[None]:
    """Turns errors that the service at an address has answered with into the exceptions that they stand for."""
    try:
        yield
    except flight.FlightServerError as error:
        raise _meant(address, error) from None
    except (flight.FlightUnauthenticatedError, pa.ArrowInvalid, KeyError) as error:
        raise UserError(f"embedding service {address}: {first_line(error)}") from None


def first_line(error: Exception) -> str:
    """Returns the message of an error without gRPC's context."""
    return str(error).split(". Detail:")[0].split(". gRPC client debug context")[0].splitlines()[0]


def _meant(address: str, error: flight.FlightServerError) -> Exception:
    """Returns the exception that the text of a service's error stands for; other errors as they are."""
    text = first_line(error)
    if text.startswith(wire.RESTARTED):
        what = "was restarted: the updates since the last checkpoint are lost"
    elif text.startswith(wire.REPLACED):
        what = f"has other rows now: {text.removeprefix(wire.REPLACED)}. Updates since the last checkpoint are lost"
    elif text.startswith(wire.HELD):
        return Held(**wire.json.loads(text.removeprefix(wire.HELD)))
    elif text.startswith(wire.LOST):
        return Lost(f"embedding service {address}: {text.removeprefix(wire.LOST)}")
    else:
        return error
    return ServiceLost(f"embedding service {address} {what}. Restart the same command to resume from it")


class Silence:
    """Names a service in the log while it does not answer, and adds up how long it did not.

    A service that stands still (stopped, swapped out, on a host that hangs) looks like slow input or slow syncs to the
    worker whose requests wait.

    Args:
      address: address of the service, for the message.
      timeout: seconds that a request waits at most.

    Attributes:
      seconds: the total time in which at least one request had waited for longer than the limit.
    """

    def __init__(self, address: str, timeout: float) -> None:
        self._watchdog = Watchdog("this worker", math.inf, warning=LIMIT_SECONDS)
        self._watchdog.explain = lambda: (
            f"it, its host or the network hangs; the job ends if this lasts longer than service_timeout={timeout:g} s"
        )
        self._address = address
        self._lock = threading.Lock()
        self._counted_until = -math.inf
        self.seconds = 0.0

    @contextlib.contextmanager
    def waiting(self, request: str) -> Iterator[None]:
        """Watches the body of the `with`, one request."""
        began = time.monotonic()
        try:
            with self._watchdog.waiting(f"the embedding service {self._address} to answer `{request}`"):
                yield
        finally:
            ended = time.monotonic()
            if ended - began > LIMIT_SECONDS:
                with self._lock:  # If requests wait concurrently, each second counts once.
                    self.seconds += max(ended - max(began, self._counted_until), 0.0)
                    self._counted_until = ended

    def close(self) -> None:
        """Ends the watch."""
        self._watchdog.close()
