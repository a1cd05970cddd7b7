"""What a delivery has done, as it stands in the spool for the training to read."""

import dataclasses

from ctr_trainer.files.paths import path_of
from ctr_trainer.messages.errors import UserError

_FILE = "delivered.json"


class NeedsBase(UserError):
    """No epoch can follow what the target has: it takes a new generation, which begins with all rows."""


@dataclasses.dataclass(frozen=True)
class Delivered:
    """The last record that was delivered, and what is wrong since.

    Attributes:
      holder: of the generation.
      epoch: of the record; -1 if none of this generation was delivered yet.
      time: seconds since 1970, at which it was delivered.
      problem: why the next record is not delivered; "" if nothing is wrong.
      needs_base: whether no epoch can follow at the target, so that the training has to begin a new generation.
    """

    holder: str
    epoch: int = -1
    time: float = 0.0
    problem: str = ""
    needs_base: bool = False


def read_delivered(spool):
    """-> the `Delivered` of a spool; None if no delivery has looked at it yet."""
    path = path_of(spool) / _FILE
    if not path.exists():
        return None
    values = path.read_json("end the training and start it again")
    try:
        return Delivered(**values)
    except TypeError as error:
        raise UserError(f"{path}: is not of this version of ctr_trainer: {error}") from None


def write_delivered(spool, delivered):
    """Replaces the `Delivered` of a spool."""
    (path_of(spool) / _FILE).write_json(dataclasses.asdict(delivered))
