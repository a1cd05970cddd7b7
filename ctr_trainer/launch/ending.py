"""Why a start of the workers has ended, by what the workers and `horovodrun` wrote."""

import dataclasses
import enum
import json
import re
import signal

from ctr_trainer.messages import exit_status

_OF_A_WORKER = re.compile(r"(?:.*\r)?\[(\d+)\]<(stdout|stderr)>:(.*)", re.DOTALL)
_EXIT = re.compile(r"Process (\d+) exit with status code (\d+)\.")
_ERROR, _STOPPED = "error: ", "stopped by "
_TERMINATED, _OF_A_SIGNAL = 128 + signal.SIGTERM, 128


class Kind(enum.Enum):
    """What kind of end it was."""

    FINISHED = "finished"
    LOST = "lost"  # A rank, a host or a service is gone, or hangs.
    FAILED = "failed"  # An error that nobody expected.
    REFUSED = "refused"  # An error that the user can mend.
    CHANGED = "changed"  # The launcher has ended them, to start them on other hosts.


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of a start of the workers.

    Attributes:
      kind: `Kind`.
      reason: sentence, without its full stop.
      rank: the first rank that ended by itself; None if none did.
    """

    kind: Kind
    reason: str
    rank: int | None = None


class Output:
    """Gathers from the lines of a `horovodrun` how its workers ended.

    Attributes:
      exits: list of (rank, status) of the workers that have ended with another status than 0, the first one first.
      said: what a worker said last of its end, an error or why it has stopped; "" for nothing.
      last: the last line that horovodrun wrote itself; "" for none.
    """

    def __init__(self):
        self.exits, self.said, self.last = [], "", ""

    def take(self, line):
        """Takes a line, a text without its newline."""
        if found := _OF_A_WORKER.fullmatch(line):
            self.said = _last_words(found[3]) or self.said
        elif found := _EXIT.search(line):
            self.exits.append((int(found[1]), int(found[2])))
        elif line.strip():
            self.last = line.strip()

    def ending(self, status):
        """-> the `Ending`.

        Args:
          status: of horovodrun.
        """
        if status == 0:
            return Ending(Kind.FINISHED, "finished")
        # Workers that horovodrun has stopped because of another one are not the reason.
        own = [exit for exit in self.exits if exit[1] != _TERMINATED] or self.exits
        if not own:
            return Ending(Kind.LOST, self.said or f"horovodrun ended with status {status}: {self.last or 'no word'}")
        kinds = [_KINDS.get(status, Kind.LOST) for _, status in own]
        kind = next(each for each in (Kind.REFUSED, Kind.LOST, Kind.FAILED) if each in kinds)
        # The rank that was killed, or whose host is gone, is the cause; a rank that reports the loss is not.
        silent = [rank for rank, status in own if status not in _KINDS]
        rank, status = own[0]
        if kind is Kind.LOST:
            rank = silent[0] if silent else None
        return Ending(kind, self.said or f"rank {rank} ended {_how(status)}", rank)


_KINDS = {
    exit_status.REFUSED: Kind.REFUSED,
    exit_status.USAGE: Kind.REFUSED,
    exit_status.FAILED: Kind.FAILED,
    exit_status.LOST: Kind.LOST,
}


def _last_words(text):
    """-> what a line of a worker, which is plain or JSON, says of its end; "" for another line."""
    if text.startswith((_ERROR, _STOPPED)):
        return text.removeprefix(_ERROR).rstrip()
    if text.startswith("{"):
        try:
            values = json.loads(text)
        except ValueError:
            return ""
        message = str(values.get("message", "")) if isinstance(values, dict) else ""
        if message.startswith(_STOPPED) or message and values.get("level") == "ERROR":
            return message
    return ""


def _how(status):
    if status > _OF_A_SIGNAL:
        try:
            return f"by {signal.Signals(status - _OF_A_SIGNAL).name}"
        except ValueError:
            pass
    return f"with status {status}"
