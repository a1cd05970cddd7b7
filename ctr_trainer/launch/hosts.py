"""Finds the available hosts and their numbers of slots."""

import concurrent.futures
import dataclasses
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable

from ctr_trainer.settings.command_flags import LaunchFlags
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import child, reach

# sshd of OpenSSH 9.8 and later refuses a host that connects more than once a second without logging in.
_CONNECT_PERIOD_SECONDS, _SILENT_PERIOD_SECONDS = 5.0, 0.5
_SSH_PORT = 22
_log = logging.getLogger(__name__)
_NAME = re.compile(r"[\w.-]+")
# Horovod's elastic mode uses the same period.
_DISCOVERY_PERIOD_SECONDS = 1.0
_ANSWER_SECONDS = 30


@dataclasses.dataclass(frozen=True)
class Host:
    """A host: its name for ssh, and the number of its slots for workers."""

    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"

    @staticmethod
    def parse(text: str, where: str, slots: int | None = None) -> "Host":
        """Parses `NAME:SLOTS`, or `NAME` if `slots` are given. Raises UserError for another format."""
        name, colon, number = text.strip().partition(":")
        number = number if colon else str(slots)
        if not _NAME.fullmatch(name) or not re.fullmatch(r"[1-9]\d*", number):
            raise UserError(f"{where}: {text.strip()!r} is not a host: expected NAME:SLOTS, such as host-1:4")
        return Host(name, int(number))


class Hosts:
    """The available hosts: a fixed list, or what a command prints, without the hosts that no longer answer.

    Within a `with` block, threads look for changes. One of them tries to connect to the ssh port of each host every
    five seconds, and every half second to a host that no longer answers. A host that has never answered counts as
    available, because ssh may reach it by another route. If not, `horovodrun` reports the error. Another thread calls
    `discover` every second, which returns the hosts that there are now; None for a fixed list. If it fails, the
    previous hosts are kept. `port` is the port of ssh; 0 for the default.
    """

    def __init__(
        self,
        hosts: Iterable[Host],
        port: int = 0,
        discover: Callable[[], tuple[Host, ...]] | None = None,
        period: float = _CONNECT_PERIOD_SECONDS,
    ) -> None:
        self._hosts, self._port, self._discover, self._period = tuple(hosts), port or _SSH_PORT, discover, period
        self._due: dict[str, float] = {}
        self._answered: set[str] = set()
        self._silent_since: dict[str, float] = {}
        self._closed = threading.Event()

    def __enter__(self) -> "Hosts":
        for watch in (self._watch_answers, self._watch_discovery) if self._discover else (self._watch_answers,):
            threading.Thread(target=watch, name="hosts", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()

    def now(self) -> tuple[Host, ...]:
        """Returns the available hosts, in order. The workers of the first host have the first ranks."""
        return tuple(host for host in self._hosts if host.name not in self._silent_since)

    def silent_for(self, name: str) -> float:
        """Returns the seconds for which a host has no longer answered; 0 if it answers, or has never answered."""
        since = self._silent_since.get(name)
        return 0.0 if since is None else time.monotonic() - since

    def _watch_discovery(self) -> None:
        assert self._discover is not None
        last = ""
        while not self._closed.wait(_DISCOVERY_PERIOD_SECONDS):
            try:
                self._hosts, error = self._discover(), ""
            except UserError as failure:
                error = str(failure)
            if error and error != last:
                _log.warning("%s; the hosts stay %s", error, listed(self._hosts))
            last = error

    def _watch_answers(self) -> None:
        with concurrent.futures.ThreadPoolExecutor(16, "hosts that answer") as threads:
            while not self._closed.wait(_SILENT_PERIOD_SECONDS):
                asked = time.monotonic()
                due = [host.name for host in self._hosts if self._due.get(host.name, 0.0) <= asked]
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


def parse_lines(lines: Iterable[str], where: str) -> tuple[Host, ...]:
    """Returns the hosts in a discovery script's output. As in Horovod, a host that is printed twice counts once."""
    found = [Host.parse(line, where, slots=1) for line in lines if line.strip()]
    return tuple({host.name: host for host in found}.values())


def read_hostfile(path: str) -> tuple[Host, ...]:
    """Returns the hosts in a file with lines of the form `NAME slots=NUMBER`. Raises UserError with the wrong line."""
    try:
        with open(path) as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise UserError(f"--hostfile={path}: {error.strerror}") from None
    found = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            name, _, slots = line.strip().partition(" ")
            if not (named := re.fullmatch(r"slots\s*=\s*(\d+)", slots.strip())):
                raise UserError(f"{path}, line {number}: {line!r}: expected NAME slots=NUMBER")
            found.append(Host.parse(f"{name}:{named[1]}", f"{path}, line {number}"))
    return tuple(found)


def open_hosts(flags: LaunchFlags) -> Hosts:
    """Returns the `Hosts` that the flags specify: by a discovery script, a list, a file, or only this host.

    Raises UserError if they are invalid, or if a fixed list has too few slots.
    """
    if flags.host_discovery_script:
        what = f"--host_discovery_script={flags.host_discovery_script}"

        def discover() -> tuple[Host, ...]:
            lines = child.run_command(["sh", "-c", flags.host_discovery_script], what, _ANSWER_SECONDS)
            return parse_lines(lines, what)

        return Hosts(discover(), flags.ssh_port, discover)
    if flags.hosts:
        hosts = [Host.parse(text, f"-H {flags.hosts}") for text in flags.hosts.split(",")]
    elif flags.hostfile:
        hosts = list(read_hostfile(flags.hostfile))
    else:
        hosts = [Host("localhost", flags.most)]
    if len({host.name for host in hosts}) < len(hosts):
        raise UserError(f"{listed(hosts)}: a host is named twice")
    if sum(host.slots for host in hosts) < flags.np:
        raise UserError(f"-np {flags.np} workers need as many slots, but {listed(hosts)} has fewer")
    return Hosts(hosts, flags.ssh_port)


def filled(hosts: Iterable[Host], workers: int) -> tuple[Host, ...]:
    """Assigns workers to the hosts in order. Returns the used hosts; their slots are their numbers of workers."""
    found: list[Host] = []
    for host in hosts:
        taken = min(host.slots, workers - sum(each.slots for each in found))
        if taken:
            found.append(Host(host.name, taken))
    return tuple(found)


def slots(hosts: Iterable[Host]) -> int:
    """Returns the total number of slots."""
    return sum(host.slots for host in hosts)


def host_of(hosts: Iterable[Host], rank: int) -> str:
    """Returns the name of the host of a rank. Ranks are assigned to the hosts in order."""
    for host in hosts:
        if rank < host.slots:
            return host.name
        rank -= host.slots
    raise ValueError(f"rank {rank} is beyond {listed(hosts)}")


def listed(hosts: Iterable[Host]) -> str:
    """Returns the hosts in the format of `-H`."""
    return ",".join(map(str, hosts)) or "no host"
