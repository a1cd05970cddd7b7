"""Several machines on one: network namespaces, joined by a bridge, each behind a link of limited speed.

Everything lies in namespaces of this process's own, the bridge too, so that nothing of the machine's network changes.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading

from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import child

INTERFACE = "eth0"
_PREFIX = "ctr-bench"
_NETWORK = "10.213.0"  # Nobody outside sees it: no route leads out of the namespaces.
# `ip netns exec` shows a namespace the files here in place of those in /etc.
_ETC = pathlib.Path("/etc/netns")
_TIMEOUT_SECONDS = 30
_MOST_MACHINES = 250
_NAMED = 'echo "$0" >/proc/sys/kernel/hostname && exec "$@"'
PACKAGES = {"ip": "iproute2", "tc": "iproute2", "taskset": "util-linux", "unshare": "util-linux"}
# A token bucket lets so much through at once: enough for a scheduler's tick at 10 Gbit/s, too little to hide a limit.
_BURST_BYTES = 256 * 1024


@dataclasses.dataclass(frozen=True)
class Machine:
    """One of them.

    Attributes:
      namespace: of its network.
      name: what it calls itself, and what the others find it by.
      address: its IP address.
      core: that its processes run on; machines beyond the cores share them.
    """

    namespace: str
    name: str
    address: str
    core: int

    def command(self, arguments):
        """-> a command that runs on it."""
        inside = (find_tool("ip"), "netns", "exec", self.namespace, find_tool("taskset"), "-c", self.core)
        named = (find_tool("unshare"), "--uts", "sh", "-c", _NAMED, self.name)
        return [*map(str, (*inside, *named)), *map(str, arguments)]


def require_privileges(tools=PACKAGES):
    """Raises UserError where this process cannot make machines, and says why.

    Args:
      tools: dict of program -> the package that has it.
    """
    missing = {tool: package for tool, package in tools.items() if find_tool(tool) is None}
    if missing:
        names, packages = ", ".join(missing), " ".join(dict.fromkeys(missing.values()))
        raise UserError(
            f"`bench network` needs {names}, not found here: install {packages} (apt-get install {packages})"
        )
    if os.geteuid() != 0:
        raise UserError(
            "`bench network` makes network namespaces, which only root may: run it as root, or in a VM of yours"
        )


def find_tool(name):
    """-> the path of a program, also of one in a directory that only root's PATH has; None where there is none."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"]))


@contextlib.contextmanager
def machines(count, cores):
    """Gives `count` Machines that reach each other, at full speed, and nothing else.

    However the block ends, SIGTERM included, all processes on them are killed and the namespaces go. Where this process
    is killed outright they stay until the next call, which removes those of processes that are gone.

    Args:
      count: of machines.
      cores: to run them on, in turn.

    Raises:
      UserError: the kernel does not let this process.
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


def limit(found, gbit):
    """Limits what each machine sends and receives.

    Args:
      found: of `machines`.
      gbit: Gbit/s each way; 0 for no limit.

    Raises:
      UserError: the kernel has no token bucket filter.
    """
    switch = re.sub(r"-\d+$", "-switch", found[0].namespace)
    for number, machine in enumerate(found):
        # What a machine receives is limited where the switch sends it.
        for namespace, device in ((machine.namespace, INTERFACE), (switch, f"port{number}")):
            if gbit:
                rate = f"{gbit * 1000:g}mbit"
                shape = ("rate", rate, "burst", str(_BURST_BYTES), "latency", "50ms")
                _inside(namespace, "tc", "qdisc", "replace", "dev", device, "root", "tbf", *shape)
            else:  # There may be nothing to remove.
                _inside(namespace, "tc", "qdisc", "del", "dev", device, "root", check=False)


def remove_leftovers():
    """Removes the namespaces of processes that ended without removing them. -> their names."""
    gone = []
    for line in _run(["ip", "netns", "list"]).splitlines():
        match = re.match(rf"({_PREFIX}-(\d+)-\S+)", line)
        if match and not pathlib.Path("/proc", match[2]).exists():
            _remove(match[1])
            gone.append(match[1])
    return gone


def _add(machine, found, switch, port):
    _ip("netns", "add", machine.namespace)
    # Horovod 0.28.1 forgets the interface it was told where it makes a process set's connections (gloo_context.cc,
    # InitializeForProcessSet), and listens where its host's name leads.
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


def _remove(namespace):
    """Kills what runs in a namespace and removes it, if it is there."""
    for pid in _run(["ip", "netns", "pids", namespace], check=False).split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    _run(["ip", "netns", "delete", namespace], check=False)
    shutil.rmtree(_ETC / namespace, ignore_errors=True)
    with contextlib.suppress(OSError):  # Somebody else's namespaces may have files there.
        _ETC.rmdir()


def _ip(*arguments):
    return _run(["ip", *arguments])


def _inside(namespace, *command, check=True):
    return _run(["ip", "netns", "exec", namespace, *command], check)


def _run(command, check=True):
    environment = {**os.environ, "PATH": os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, env=environment)
    except subprocess.TimeoutExpired:
        raise UserError(f"{' '.join(command)} did not end within {_TIMEOUT_SECONDS} s") from None
    if check and done.returncode:
        raise UserError(
            f"this kernel does not let `bench network` make its machines: {' '.join(command)}: {done.stderr.strip()}; "
            "it takes network namespaces, veth, bridge and sch_tbf, which a container has only with CAP_SYS_ADMIN and "
            "CAP_NET_ADMIN"
        )
    return done.stdout


@contextlib.contextmanager
def _stopped_by_sigterm():
    """Has SIGTERM end the block as an exception does, where signals are this thread's to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number, frame):
        raise SystemExit(128 + number)

    with child.handling_signals(stop, [signal.SIGTERM]):
        yield
