"""An SSH daemon on each machine and a client that reaches them, with keys that are made for this use only."""

import contextlib
import fcntl
import os
import pathlib
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence

from ctr_trainer.bench.namespaces import Machine, tool
from ctr_trainer.messages.errors import UserError

PACKAGES = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
_PORT = 22
_TIMEOUT_SECONDS = 30
_POLL_SECONDS = 0.05
# sshd needs this empty directory for the process that authenticates a client.
_EMPTY = pathlib.Path("/run/sshd")


@contextlib.contextmanager
def daemons(machines: Sequence[Machine], directory: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Starts a daemon on each machine, and stops them at the end of the block.

    Args:
      machines: the machines; `namespaces.machines` kills any processes that the daemons leave.
      directory: directory for keys, settings and logs, which only this user may read.

    Yields:
      directory with an `ssh` that reaches the machines; put it at the front of a PATH.

    Raises:
      UserError: a daemon does not answer in time; the message has its log.
    """
    directory = pathlib.Path(directory).resolve()
    for name in ("host", "client"):
        keygen = [tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
        subprocess.run(keygen, check=True, timeout=_TIMEOUT_SECONDS)
    (directory / "sshd_config").write_text(_daemon_settings(directory))
    (directory / "ssh_config").write_text(_client_settings(directory))
    programs = directory / "bin"
    programs.mkdir()
    client = programs / "ssh"
    client.write_text(f'#!/bin/sh\nexec {tool("ssh")} -F {shlex.quote(str(directory / "ssh_config"))} "$@"\n')
    client.chmod(0o700)
    started = []
    with in_use(_EMPTY):
        try:
            for machine in machines:
                log = directory / f"sshd-{machine.address}.log"
                daemon = [tool("sshd"), "-D", "-f", directory / "sshd_config", "-E", log]
                started.append((machine, log, subprocess.Popen(machine.command(daemon), stdin=subprocess.DEVNULL)))
            for machine, log, process in started:
                _wait(machine, log, process, programs)
            yield programs
        finally:
            for _, _, process in started:
                process.terminate()
            for _, _, process in started:
                process.wait(_TIMEOUT_SECONDS)


@contextlib.contextmanager
def in_use(directory: pathlib.Path) -> Iterator[None]:
    """Makes a directory if it does not exist. If so, the block's end removes it, unless another process uses it."""
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


def _daemon_settings(directory: pathlib.Path) -> str:
    return "\n".join(
        [
            f"Port {_PORT}",
            f"HostKey {directory / 'host'}",
            f"AuthorizedKeysFile {directory / 'client.pub'}",
            "StrictModes no",  # The directory may be in one that others may write to, such as /tmp.
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "UsePAM no",
            "UseDNS no",
            "MaxStartups 500",
            "PidFile none\n",
        ]
    )


def _client_settings(directory: pathlib.Path) -> str:
    return "\n".join(
        [
            "Host *",
            f"  Port {_PORT}",
            f"  IdentityFile {directory / 'client'}",
            "  IdentitiesOnly yes",
            "  UserKnownHostsFile /dev/null",  # The user's own file is not for hosts that soon disappear.
            "  GlobalKnownHostsFile /dev/null",
            "  StrictHostKeyChecking no",
            "  BatchMode yes",
            f"  ConnectTimeout {_TIMEOUT_SECONDS}",
            "  LogLevel ERROR\n",
        ]
    )


def _wait(machine: Machine, log: pathlib.Path, process: "subprocess.Popen[bytes]", programs: pathlib.Path) -> None:
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
        time.sleep(_POLL_SECONDS)
