"""Simulates several machines on one machine: network namespaces that a bridge connects over links of limited speed.

The bridge is also in a namespace, so that the machine's own network does not change. The machines reach each other by
SSH. `benchmarks/network.py` uses them, too.
"""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import FrameType

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import child

INTERFACE = "eth0"
_PREFIX = "ctr-hosts"
_NETWORK = "10.213.0"  # Any private network works, as no route leads out of the namespaces.
# `ip netns exec` mounts the files of a directory NAMESPACE in this directory over the files in /etc.
_ETC = pathlib.Path("/etc/netns")
_TIMEOUT_SECONDS = 30
_MOST_MACHINES = 250
_NAMED = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'
PACKAGES = {
    **{"ip": "iproute2", "tc": "iproute2", "taskset": "util-linux", "unshare": "util-linux"},
    **{"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"},
}
# sshd requires this empty directory for the process that authenticates a client.
SSHD_DIRECTORY = pathlib.Path("/run/sshd")
_SSHD_SETTINGS = """\
Port 22
HostKey {directory}/host
AuthorizedKeysFile {directory}/client.pub
# The parent directory may be writable by others, such as /tmp.
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UsePAM no
UseDNS no
MaxStartups 500
PidFile none
"""
# The hosts are temporary, so the user's own file of known hosts must not list them.
_SSH_SETTINGS = """\
Host *
  Port 22
  IdentityFile {directory}/client
  IdentitiesOnly yes
  UserKnownHostsFile /dev/null
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking no
  BatchMode yes
  ConnectTimeout {seconds}
  LogLevel ERROR
"""
# The size of a token bucket: enough for a scheduler's tick at 10 Gbit/s, and small enough not to hide the limit.
_BURST_BYTES = 256 * 1024


@dataclasses.dataclass(frozen=True)
class Machine:
    """A simulated machine: a network namespace with a host name, which the other machines can resolve to its address.

    Its processes run on one core; several machines may share a core.
    """

    namespace: str
    name: str
    address: str
    core: int

    def command(self, arguments: Iterable[object]) -> list[str]:
        """Returns the command that runs a program with these arguments on the machine."""
        inside = (tool("ip"), "netns", "exec", self.namespace, tool("taskset"), "-c", self.core)
        named = (tool("unshare"), "--uts", "sh", "-c", _NAMED, self.name)
        return [*map(str, (*inside, *named)), *map(str, arguments)]


def require_privileges(tools: Mapping[str, str] = PACKAGES) -> None:
    """Raises UserError, with the reason, if this process cannot create the namespaces.

    `tools` maps each required program to its package.
    """
    missing = {name: package for name, package in tools.items() if _find(name) is None}
    if missing:
        names, packages = ", ".join(missing), " ".join(dict.fromkeys(missing.values()))
        raise UserError(f"simulated machines need {names}, which are not on the PATH: apt-get install {packages}")
    if os.geteuid() != 0:
        raise UserError(
            "simulated machines are network namespaces, which only root can create: use sudo or a virtual machine"
        )


def tool(name: str) -> str:
    """Returns the path of a program on the PATH or in /usr/sbin or /sbin; its name if it is not found."""
    return _find(name) or name


def _find(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


@contextlib.contextmanager
def machines(count: int, cores: Sequence[int]) -> Iterator[list[Machine]]:
    """Yields machines that can reach only each other, at full speed.

    At the end of the block, also after an exception or SIGTERM, all processes on the machines are killed and the
    namespaces are removed. If SIGKILL ends this process, they stay until the next call, which calls
    `remove_leftovers`. The cores of this machine are assigned to the machines in turn.

    Raises:
      UserError: this process lacks a program or a privilege.
    """
    if not 2 <= count <= _MOST_MACHINES:
        raise UserError(f"--machines={count}: expected 2 to {_MOST_MACHINES}")
    require_privileges()
    remove_leftovers()
    base = f"{_PREFIX}-{os.getpid()}"
    switch = f"{base}-switch"
    found = [
        Machine(f"{base}-{i}", f"host-{i + 1}", f"{_NETWORK}.{i + 1}", cores[i % len(cores)]) for i in range(count)
    ]
    with _stopped_by_sigterm():
        try:
            _ip("netns", "add", switch)
            _inside(switch, "ip", "link", "add", "bridge", "type", "bridge")
            _inside(switch, "ip", "link", "set", "bridge", "up")
            for number, machine in enumerate(found):
                _add(machine, found, switch, f"port{number}")
            yield found
        finally:
            for namespace in [*(machine.namespace for machine in found), switch]:
                _remove(namespace)


def limit(found: Sequence[Machine], gbit: float) -> None:
    """Limits the rate at which each machine from `machines` sends, and the rate at which it receives; 0 for no limit.

    Raises:
      UserError: the kernel has no token bucket filter.
    """
    switch = re.sub(r"-\d+$", "-switch", found[0].namespace)
    for number, machine in enumerate(found):
        # The receiving speed is limited at the port of the switch that sends to the machine.
        for namespace, device in ((machine.namespace, INTERFACE), (switch, f"port{number}")):
            if gbit:
                rate = f"{gbit * 1000:g}mbit"
                shape = ("rate", rate, "burst", str(_BURST_BYTES), "latency", "50ms")
                _inside(namespace, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *shape)
            else:  # There may be no limit to remove, so a failure is ignored.
                _inside(namespace, "tc", "qdisc", "del", "dev", device, "root", check=False)


def remove_leftovers() -> list[str]:
    """Removes the namespaces of processes that have ended without removing them, and returns their names."""
    gone = []
    for line in _run(["ip", "netns", "list"]).splitlines():
        match = re.match(rf"({_PREFIX}-(\d+)-\S+)", line)
        if match and not pathlib.Path("/proc", match[2]).exists():
            _remove(match[1])
            gone.append(match[1])
    return gone


def _add(machine: Machine, found: Sequence[Machine], switch: str, port: str) -> None:
    _ip("netns", "add", machine.namespace)
    # Horovod 0.28.1 ignores --network-interface when it connects the workers of a process set (gloo_context.cc,
    # InitializeForProcessSet). It listens on the address of its host name, so the name must resolve to this address.
    hosts = _ETC / machine.namespace / "hosts"
    hosts.parent.mkdir(parents=True)
    hosts.write_text("".join(["127.0.0.1 localhost\n", *(f"{each.address} {each.name}\n" for each in found)]))
    pair = ("link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", switch)
    _inside(machine.namespace, "ip", *pair)
    _inside(machine.namespace, "ip", "address", "add", f"{machine.address}/24", "dev", INTERFACE)
    for device in ("lo", INTERFACE):
        _inside(machine.namespace, "ip", "link", "set", device, "up")
    _inside(switch, "ip", "link", "set", port, "master", "bridge")
    _inside(switch, "ip", "link", "set", port, "up")


def _remove(namespace: str) -> None:
    """Kills all processes in a namespace and removes it, if it exists."""
    for pid in _run(["ip", "netns", "pids", namespace], check=False).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _run(["ip", "netns", "delete", namespace], check=False)
    shutil.rmtree(_ETC / namespace, ignore_errors=True)
    with contextlib.suppress(OSError):  # Other namespaces may have files there.
        _ETC.rmdir()


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments])


def _inside(namespace: str, *command: str, check: bool = True) -> str:
    return _run(["ip", "netns", "exec", namespace, *command], check)


def _run(command: Sequence[str], check: bool = True) -> str:
    environment = {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise UserError(f"{' '.join(command)} did not end within {_TIMEOUT_SECONDS} s") from None
    if check and done.returncode:
        raise UserError(
            f"this kernel does not let this process simulate machines: {' '.join(command)}: {done.stderr.strip()}; "
            "it needs network namespaces, veth, bridge and sch_tbf, which a container has only with CAP_SYS_ADMIN and "
            "CAP_NET_ADMIN"
        )
    return done.stdout


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Makes SIGTERM raise SystemExit within the block; does nothing on a thread that cannot handle signals."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    with child.handling_signals(stop):
        yield


@contextlib.contextmanager
def ssh_daemons(found: Sequence[Machine], directory: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Starts an SSH daemon on each machine, and stops the daemons at the end of the block.

    `machines` kills any processes that the daemons leave running. `directory` is for keys, settings and
    logs; only this user may have access.

    Yields:
      directory with an `ssh` that reaches the machines; put it at the front of a PATH.

    Raises:
      UserError: a daemon does not answer in time; the message contains its log.
    """
    directory = pathlib.Path(directory).resolve()
    for name in ("host", "client"):
        keygen = [tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(keygen, check=True, timeout=_TIMEOUT_SECONDS)
    (directory / "sshd_config").write_text(_SSHD_SETTINGS.format(directory=directory))
    (directory / "ssh_config").write_text(_SSH_SETTINGS.format(directory=directory, seconds=_TIMEOUT_SECONDS))
    programs = directory / "bin"
    programs.mkdir()
    client = programs / "ssh"
    client.write_text(f'#!/bin/sh\nexec {tool("ssh")} -F {shlex.quote(str(directory / "ssh_config"))} "$@"\n')
    client.chmod(0o700)
    started = []
    with directory_in_use(SSHD_DIRECTORY):
        try:
            for machine in found:
                log = directory / f"sshd-{machine.address}.log"
                daemon = [tool("sshd"), "-D", "-f", directory / "sshd_config", "-E", log]
                started.append((machine, log, subprocess.Popen(machine.command(daemon), stdin=subprocess.DEVNULL)))
            for machine, log, process in started:
                _wait_for_login(machine, log, process, programs)
            yield programs
        finally:
            for _, _, process in started:
                process.terminate()
            for _, _, process in started:
                process.wait(_TIMEOUT_SECONDS)


@contextlib.contextmanager
def directory_in_use(directory: pathlib.Path) -> Iterator[None]:
    """Creates a directory if it does not exist, and then removes it at the end unless another process uses it."""
    own = not directory.exists()
    directory.mkdir(mode=0o755, exist_ok=True)
    users = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(users, fcntl.LOCK_SH)
        yield
    finally:
        if own:
            with contextlib.suppress(OSError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                directory.rmdir()
        os.close(users)


def _wait_for_login(
    machine: Machine, log: pathlib.Path, process: "subprocess.Popen[bytes]", programs: pathlib.Path
) -> None:
    """Returns when a login on the machine works."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    login = machine.command([programs / "ssh", "-o", "PasswordAuthentication=no", machine.address, "true"])
    while True:
        done = subprocess.run(login, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
        if done.returncode == 0:
            return
        if process.poll() is not None or time.monotonic() > deadline:
            text = log.read_text(errors="replace") if log.exists() else ""
            raise UserError(
                f"the SSH daemon on {machine.address} does not answer: {done.stderr.strip()}\n{text.strip()}"
            )
        time.sleep(0.05)
