"""Hosts that are left out for a while, because they fail again and again."""

import time

_FIRST_SECONDS, _LONGEST_SECONDS = 10.0, 600.0


class LeftOut:
    """Counts the failures of each host.

    The first failure costs a host nothing. From the second in a row on it is left out for 10 s, 20 s, 40 s and so on,
    10 minutes at most. A checkpoint that is written while the host takes part ends the row.

    Args:
      clock: f() -> seconds.
    """

    def __init__(self, clock=time.monotonic):
        self._clock = clock
        self._failures, self._until = {}, {}

    def failed(self, name):
        """Counts a failure. -> seconds for which the host is left out from now on; 0 for not at all"""
        self._failures[name] = self._failures.get(name, 0) + 1
        if self._failures[name] < 2:
            return 0.0
        seconds = min(_FIRST_SECONDS * 2 ** (self._failures[name] - 2), _LONGEST_SECONDS)
        self._until[name] = self._clock() + seconds
        return seconds

    def took_part(self, hosts):
        """Forgets the failures of hosts that took part in training up to a new checkpoint."""
        for host in hosts:
            self._failures.pop(host.name, None)

    def others(self, hosts):
        """-> tuple of the hosts that are not left out now."""
        now = self._clock()
        return tuple(host for host in hosts if self._until.get(host.name, now) <= now)
