"""Leaves hosts out that do not answer."""

import concurrent.futures
import threading
import time

from ctr_trainer.launch.hosts import Hosts
from ctr_trainer.processes import reach

# sshd of OpenSSH 9.8 and later refuses a host that connects more than once a second without logging in.
_PERIOD_SECONDS, _SILENT_PERIOD_SECONDS = 5.0, 0.5
_SSH_PORT = 22


class ReachableHosts(Hosts):
    """Those of some `Hosts` that answer at the port of ssh.

    A thread tries to connect every five seconds, and every half second to a host that is silent. A host that has never
    answered counts as there: ssh may go another way to it, and `horovodrun` says what is wrong.

    Args:
      hosts: `Hosts`.
      port: of ssh; 0 for its usual one.
      period: seconds between two connections to a host that answers.
    """

    def __init__(self, hosts: Hosts, port: int, period: float = _PERIOD_SECONDS) -> None:
        self._hosts, self._port, self._period = hosts, port or _SSH_PORT, period
        self._due: dict[str, float] = {}
        self._answered, self._silent_since = set(), {}
        self._closed = threading.Event()
        threading.Thread(target=self._watch, name="hosts that answer", daemon=True).start()

    def now(self):
        return tuple(host for host in self._hosts.now() if host.name not in self._silent_since)

    def silent_for(self, name):
        """-> seconds for which a host that answered before has not; 0 for one that does."""
        since = self._silent_since.get(name)
        return 0.0 if since is None else time.monotonic() - since

    def close(self):
        self._closed.set()
        self._hosts.close()

    def _watch(self):
        with concurrent.futures.ThreadPoolExecutor(16, "hosts that answer") as threads:
            while not self._closed.wait(_SILENT_PERIOD_SECONDS):
                asked = time.monotonic()
                due = [host.name for host in self._hosts.now() if self._due.get(host.name, 0.0) <= asked]
                names = [name for name in due if not reach.is_here(name)]
                silent = threads.map(reach.is_silent, [f"{name}:{self._port}" for name in names])
                for name, is_silent in zip(names, silent, strict=True):
                    if not is_silent or name not in self._answered:
                        self._due[name] = asked + self._period
                    if not is_silent:
                        self._answered.add(name)
                        self._silent_since.pop(name, None)
                    elif name in self._answered:
                        self._silent_since.setdefault(name, asked)
