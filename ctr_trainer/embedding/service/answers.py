"""What the errors of a service mean, and reports of a service that does not answer."""

import contextlib
import math
import threading
import time
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.service import wire
from ctr_trainer.embedding.service.lease import LeaseHeld
from ctr_trainer.system.messages.errors import Lost, ServiceLost, UserError
from ctr_trainer.system.processes.waiting import Watchdog

# An answer takes milliseconds. After this number of seconds the service counts as silent.
LIMIT_SECONDS = 5.0


@contextlib.contextmanager
def meanings(address: str) -> Iterator[None]:
    """Turns errors in answers of the service at `address` into the exceptions that they represent."""
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
    """Returns the exception that the text of a service's error represents; returns other errors unchanged."""
    text = first_line(error)
    if text.startswith(wire.RESTARTED):
        what = "was restarted: the updates since the last checkpoint are lost"
    elif text.startswith(wire.REPLACED):
        what = f"has other rows now: {text.removeprefix(wire.REPLACED)}. Updates since the last checkpoint are lost"
    elif text.startswith(wire.HELD):
        return LeaseHeld(**wire.json.loads(text.removeprefix(wire.HELD)))
    elif text.startswith(wire.LOST):
        return Lost(f"embedding service {address}: {text.removeprefix(wire.LOST)}")
    else:
        return error
    return ServiceLost(f"embedding service {address} {what}. Restart the same command to resume from it")


class Silence:
    """Reports a service in the log while it does not answer, and totals in `seconds` the time without answers.

    To a worker whose requests wait, a service that hangs otherwise looks like slow input or slow syncs.
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
        """Watches one request, the body of the `with` statement."""
        began = time.monotonic()
        try:
            with self._watchdog.waiting(f"the embedding service {self._address} to answer `{request}`"):
                yield
        finally:
            ended = time.monotonic()
            if ended - began > LIMIT_SECONDS:
                with self._lock:  # Each second counts once, even if several requests wait.
                    self.seconds += max(ended - max(began, self._counted_until), 0.0)
                    self._counted_until = ended

    def close(self) -> None:
        self._watchdog.close()
