"""What the errors of a service mean to its client; `service` gives them their texts."""

import contextlib
from collections.abc import Iterator

import pyarrow as pa
from pyarrow import flight

from ctr_trainer.embedding.service import wire
from ctr_trainer.messages.errors import Lost, ServiceLost, UserError


class Held(Exception):
    """Another training holds the lease; see `lease.LeaseHeld`."""

    def __init__(self, holder: str, heard: float, left: float) -> None:
        super().__init__(holder)
        self.holder, self.heard, self.left = holder, heard, left


@contextlib.contextmanager
def meanings(address: str) -> Iterator[None]:
    """Turns errors that the service at an address has answered with into those that they stand for."""
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
        what = "was restarted: the rows since the last checkpoint are gone"
    elif text.startswith(wire.REPLACED):
        what = f"has other rows now: {text.removeprefix(wire.REPLACED)}. Those since the last checkpoint are gone"
    elif text.startswith(wire.HELD):
        return Held(**wire.json.loads(text.removeprefix(wire.HELD)))
    elif text.startswith(wire.LOST):
        return Lost(f"embedding service {address}: {text.removeprefix(wire.LOST)}")
    else:
        return error
    return ServiceLost(f"embedding service {address} {what}. Start the same command again to resume from it")
