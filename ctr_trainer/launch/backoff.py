"""Decides whether and when workers are restarted, and which hosts are left out temporarily."""

import time
from collections.abc import Callable, Iterable

from ctr_trainer.launch.hosts import Host
from ctr_trainer.launch.output import Ending, Kind

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 5.0, 60.0
_FIRST_SECONDS, _LONGEST_SECONDS = 10.0, 600.0


class Patience:
    """Counts the restarts since the last new checkpoint.

    Args:
      most: largest number of consecutive restarts without a new checkpoint.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._fruitless, self._failure = 0, ""

    def new_checkpoint(self) -> None:
        """Resets the count, because the training makes progress."""
        self._fruitless, self._failure = 0, ""

    @property
    def pause_seconds(self) -> float:
        """The pause before the next start: 0 s before the first restart, then 5 s, 10 s, 20 s, 40 s and 60 s.

        A lost store or service may need minutes to come back.
        """
        if self._fruitless < 2:
            return 0.0
        return min(_FIRST_PAUSE_SECONDS * 2 ** (self._fruitless - 2), _LONGEST_PAUSE_SECONDS)

    def why_not(self, ending: Ending) -> str:
        """Counts a restart. Returns a sentence that explains why the workers are not restarted; "" if they are.

        Args:
          ending: `Ending` other than `FINISHED`.
        """
        if ending.kind is Kind.REFUSED:
            return "Not restarted: the same flags and data would end the same way"
        if ending.kind is Kind.FAILED and ending.reason == self._failure:
            return "Not restarted: the previous start ended with the same error, and no checkpoint was written"
        self._failure = ending.reason if ending.kind is Kind.FAILED else ""
        self._fruitless += 1
        if self._fruitless > self._most:
            return f"Not restarted: --max_restarts={self._most} restarts in a row produced no new checkpoint"
        return ""


class LeftOut:
    """Counts the failures of each host.

    A host is not left out after its first failure. After further consecutive failures it is left out for 10 s, 20 s,
    40 s and so on, at most 10 minutes. A checkpoint that is written with this host resets the count.

    Args:
      clock: f() -> seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def failed(self, name: str) -> float:
        """Counts a failure, and returns the number of seconds for which the host is left out."""
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] < 2:
            return 0.0
        seconds = min(_FIRST_SECONDS * 2 ** (self._failures[name] - 2), _LONGEST_SECONDS)
        self._until[name] = self._clock() + seconds
        return seconds

    def took_part(self, hosts: Iterable[Host]) -> None:
        """Resets the failures of hosts that took part in training up to a new checkpoint."""
        for host in hosts:
            self._failures.pop(host.name, None)

    def others(self, hosts: Iterable[Host]) -> tuple[Host, ...]:
        """Returns the hosts that are not left out at present."""
        now = self._clock()
        return tuple(host for host in hosts if self._until.get(host.name, now) <= now)
