"""Determines why an attempt ended, from the records of its workers and from the output of horovodrun."""

import dataclasses
import enum
import re
import signal
from collections.abc import Sequence

from ctr_trainer.ranks.endings import records
from ctr_trainer.ranks.endings.records import EndRecord, first_cause
from ctr_trainer.system.messages import errors

_OF_A_WORKER = re.compile(r"(?:.*\r)?\[(\d+)\]<(stdout|stderr)>:(.*)", re.DOTALL)
_EXIT = re.compile(r"Process (\d+) exit with status code (\d+)\.")
_OF_A_SIGNAL = 128


class Kind(enum.Enum):
    """The kind of an `Ending`."""

    FINISHED = "finished"
    LOST = "lost"  # A rank, a host or a service is lost or hangs.
    FAILED = "failed"  # An unexpected error.
    REFUSED = "refused"  # An error that the user can correct.
    CHANGED = "changed"  # The launcher has stopped the workers in order to start them on other hosts.


_KINDS = {
    errors.REFUSED: Kind.REFUSED,
    errors.USAGE: Kind.REFUSED,
    errors.FAILED: Kind.FAILED,
    errors.LOST: Kind.LOST,
}
# The statuses of workers that report why they end, or that a signal has asked to end.
_REPORTED = {*_KINDS, errors.INTERRUPTED, errors.TERMINATED}


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of an `Attempt`.

    Attributes:
      reason: sentence, without its full stop.
      rank: the first rank that failed; None if no rank failed, or if it is unknown.
    """

    kind: Kind
    reason: str
    rank: int | None = None


class Output:
    """What `horovodrun` prints about its workers: `exits`, the (rank, nonzero status) of each, and its `last` line."""

    def __init__(self) -> None:
        self.exits: list[tuple[int, int]] = []
        self.last = ""

    def take(self, line: str) -> None:
        """Processes a line, without its newline."""
        if _OF_A_WORKER.fullmatch(line):
            return
        if found := _EXIT.search(line):
            self.exits.append((int(found[1]), int(found[2])))
        elif line.strip():
            self.last = line.strip()

    def ending(self, status: int, written: Sequence[EndRecord]) -> Ending:
        """Returns the `Ending` for the exit status of `horovodrun` and the records that the workers have written."""
        if status == 0:
            return Ending(Kind.FINISHED, "finished")
        killed = [exit for exit in self.exits if exit[1] not in _REPORTED]
        first = first_cause(written) if written else None
        if first is not None and (first.kind is records.RecordKind.CAUSE or not killed):
            kind = _KINDS.get(first.status, Kind.LOST)
            # A rank that reports the loss of a service, or of another rank, is not the one that failed.
            is_at_fault = first.kind is records.RecordKind.CAUSE and (kind is not Kind.LOST or first.is_of_killed)
            return Ending(kind, " ".join(first.message.split()), first.rank if is_at_fault else None)
        if not self.exits:
            return Ending(Kind.LOST, f"horovodrun ended with status {status}: {self.last or 'it printed nothing'}")
        # Workers that horovodrun stopped because another worker ended are not the cause.
        own = [exit for exit in self.exits if exit[1] != errors.TERMINATED]
        rank, status = [*killed, *own, *self.exits][0]
        return Ending(_KINDS.get(status, Kind.LOST), f"rank {rank} ended {_how(status)}", rank)


def _how(status: int) -> str:
    if status > _OF_A_SIGNAL:
        try:
            return f"by {signal.Signals(status - _OF_A_SIGNAL).name}"
        except ValueError:
            pass
    return f"with status {status}"
