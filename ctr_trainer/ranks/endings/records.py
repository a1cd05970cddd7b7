"""The records of the ranks that end: why each has ended, and their exchange with the other ranks and the launcher."""

import contextlib
import dataclasses
import enum
import json
import os
import pathlib
import socket
import time
from collections.abc import Iterable, Iterator

import psutil

from ctr_trainer.ranks.notices import ATTEMPT, Notices, Placement
from ctr_trainer.system.messages.errors import LOST

# Environment variable that `launch` sets: the directory in which the ranks write their records for it.
ERRORS = "CTR_TRAINER_ERRORS"
_MOST_CHARACTERS = 20_000
# Ranks that fail at the same time write their records within the first time, and further ranks within the second.
SETTLE_SECONDS = 0.5
_ANSWER_SECONDS = 1.5
_POLL_SECONDS = 0.1
# The maximum number of requests per second that all ranks together send to the server of the notices.
_ASKED_A_SECOND = 200


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
    def new(cls, message: str, kind: RecordKind, status: int, rank: int, is_here: bool) -> "EndRecord":
        """Returns the record of this process, which is `rank`."""
        host, attempt = socket.gethostname(), os.environ.get(ATTEMPT, "")
        return cls(message, kind, status, time.time(), rank, rank, host, os.getpid(), is_here, attempt)

    def of_killed(self, rank: int, pid: int) -> "EndRecord":
        """Returns the record of another rank of this host, which has ended without writing one."""
        message = (
            f"rank {rank} on {self.host} has ended without an error message: it was killed, as the system does when "
            "memory runs out, or it crashed"
        )
        return dataclasses.replace(self, message=message, kind=RecordKind.CAUSE, status=LOST, rank=rank, pid=pid)

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


class RecordExchange:
    """The records of the ranks of a job. The notices share them among all hosts, and a directory with the launcher."""

    def __init__(self, notices: Notices, placement: Placement) -> None:
        self._notices, self._placement, self._size = notices, placement, placement.size
        self.poll_seconds = max(_POLL_SECONDS, self._size / _ASKED_A_SECOND)

    def put(self, record: EndRecord) -> None:
        """Writes a record for the other ranks and for the launcher."""
        if self._size > 1:
            self._notices.put(f"end.{record.rank}", record.to_json())
        self.pass_on(record)

    def pass_on(self, record: EndRecord) -> None:
        """Writes a record, also of a rank of another host, for the launcher if it runs on this host."""
        if directory := os.environ.get(ERRORS):
            record.write(directory)

    def all(self, own: EndRecord) -> list[EndRecord]:
        """Returns the records of all ranks, as soon as the cause is known, or they have had the time to be written."""
        if self._size == 1:
            return [own]
        time.sleep(SETTLE_SECONDS)
        deadline = time.monotonic() + (0.0 if own.kind is RecordKind.CAUSE else _ANSWER_SECONDS)
        while True:
            self.put_killed(own)
            records = [*({record.rank: record for record in self._found()} | {own.rank: own}).values()]
            if len(records) == self._size or self._is_known(records) or time.monotonic() > deadline:
                return records
            time.sleep(self.poll_seconds)

    def _is_known(self, records: list[EndRecord]) -> bool:
        """Whether the records contain a cause, and the record of the rank that reports it."""
        causes = [record for record in records if record.kind is RecordKind.CAUSE]
        # A rank that was killed is reported by a rank on the host of horovodrun.
        has_reporter = any(record.is_here and not record.is_of_killed for record in records)
        return any(has_reporter or not cause.is_of_killed for cause in causes)

    def has_cause(self) -> bool:
        """Returns whether any rank of the job has the record of a cause."""
        return any(record.kind is RecordKind.CAUSE for record in self._found())

    def _found(self) -> Iterator[EndRecord]:
        records = (EndRecord.parse(self._notices.get(f"end.{rank}")) for rank in range(self._size))
        return (record for record in records if record is not None)

    def put_killed(self, own: EndRecord) -> None:
        """Writes records of the ranks of this host that were killed; `own` is a record of this rank."""
        for rank in self._placement.host_ranks:
            process, _, host = (self._notices.get(f"process.{rank}") or "").partition(" ")
            if rank == self._placement.rank or not process.isdecimal() or host != socket.gethostname():
                continue
            if not psutil.pid_exists(int(process)) and self._notices.get(f"end.{rank}") is None:
                self.put(own.of_killed(rank, int(process)))

    def unheard(self) -> str:
        """Returns a sentence that names the ranks that have never written a notice; "" if there are none."""
        heard = [self._notices.get(f"process.{rank}") is not None for rank in range(self._size)]
        unheard = [str(rank) for rank, is_heard in enumerate(heard) if not is_heard]
        if not unheard or not heard[self._placement.rank]:  # Without its own notice, the server does not answer.
            return ""
        ranks = f"rank{'s' * (len(unheard) > 1)} {', '.join(unheard)}"
        return f"nothing was heard of {ranks}, whose host may not reach horovodrun at {self._notices.address}"
