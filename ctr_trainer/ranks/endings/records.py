"""The record of a rank that ends, which the other ranks and the launcher read."""

import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import socket
import time
from collections.abc import Iterable

from ctr_trainer.ranks.notices import ATTEMPT
from ctr_trainer.system.messages.errors import LOST

# Environment variable that `launch` sets: the directory in which the ranks write their records for it.
ERRORS = "CTR_TRAINER_ERRORS"
_MOST_CHARACTERS = 20_000


class RecordKind(enum.IntEnum):
    """What a record describes. A record of a lower kind explains the records of the higher kinds."""

    CAUSE = 0  # The rank's own error, or that the rank was killed.
    OTHER_RANK = 1  # An error that another rank has caused, such as a lost connection.
    SIGNAL = 2  # A signal has ended the rank. If a rank fails, horovodrun sends one to all others.
    IN_ORDER = 3  # A training has stopped and saved, because a signal asked it to.
    FINISHED = 4


@dataclasses.dataclass(frozen=True)
class EndRecord:
    """Why a rank has ended.

    Attributes:
      message: sentence for the user, without its full stop.
      status: the exit status.
      time: time of the error, in seconds since 1970.
      writer: the rank that wrote the record. For a rank that was killed, it is another rank of its host.
      is_here: whether the writer runs on the host of `horovodrun`.
      attempt: the launcher's name for this start of the workers; "" without a launcher.
      traceback: its lines, if the error is unexpected.
    """

    message: str
    kind: RecordKind
    status: int
    time: float
    rank: int
    writer: int
    host: str
    pid: int
    is_here: bool
    attempt: str = ""
    traceback: tuple[str, ...] = ()

    @classmethod
    def new(
        cls, message: str, kind: RecordKind, status: int, rank: int, is_here: bool, traceback: Iterable[str] = ()
    ) -> "EndRecord":
        """Returns the record of this process, which is `rank`."""
        host, attempt = socket.gethostname(), os.environ.get(ATTEMPT, "")
        lines = tuple(traceback)
        return cls(message, kind, status, time.time(), rank, rank, host, os.getpid(), is_here, attempt, lines)

    def of_killed(self, rank: int, pid: int) -> "EndRecord":
        """Returns the record of another rank of this host, which has ended without writing one."""
        message = (
            f"rank {rank} on {self.host} has ended without an error message: it was killed, as the system does when "
            "memory runs out, or it crashed"
        )
        return dataclasses.replace(
            self, message=message, kind=RecordKind.CAUSE, status=LOST, rank=rank, pid=pid, traceback=()
        )

    @property
    def is_of_killed(self) -> bool:
        """Whether the rank was killed, so that another rank wrote this record."""
        return self.writer != self.rank

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)

    @classmethod
    def parse(cls, text: str | None) -> "EndRecord | None":
        """Returns the record in a text; None if the text is not a record, because any program may have written it."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            values = json.loads(text or "")
            for field, kind in (("message", str), ("host", str), ("attempt", str), ("pid", int), ("time", float)):
                if not isinstance(values[field], kind) or len(str(values[field])) > _MOST_CHARACTERS:
                    return None
            return cls(**{**values, "kind": RecordKind(values["kind"]), "traceback": tuple(values["traceback"])})
        return None

    def write(self, directory: str) -> str:
        """Writes `error-rankR.json`, and returns its path; "" if the directory does not exist or cannot be written."""
        path = os.path.join(directory, f"error-rank{self.rank}.json")
        try:
            if not os.path.isdir(directory):
                return ""
            pathlib.Path(f"{path}.tmp").write_text(self.to_json() + "\n")
            os.replace(f"{path}.tmp", path)
        except OSError:
            return ""
        return path


def read_records(directory: str, attempt: str) -> list[EndRecord]:
    """Returns the records of one start of the workers in a directory."""
    found = []
    for path in pathlib.Path(directory).glob("error-rank*.json"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            found.append(EndRecord.parse(path.read_text()))
    return [record for record in found if record is not None and record.attempt == attempt]


def first_cause(records: Iterable[EndRecord]) -> EndRecord:
    """Returns the record that explains the others: the earliest one of the lowest kind, if the hosts' clocks agree."""
    return min(records, key=lambda record: (record.kind, record.time, not record.is_of_killed, record.rank))
