"""An SSH daemon on each machine, and a client that finds them, with keys of their own that nobody keeps."""

import contextlib
import fcntl
import os
import pathlib
import shlex
import subprocess
import time

from ctr_trainer.bench.namespaces import find_tool
from ctr_trainer.messages.errors import UserError

PACKAGES = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
_PORT = 22
_TIMEOUT_SECONDS = 30
_POLL_SECONDS = 0.05
# Where sshd wants an empty directory, for what it does before a client is known.
_EMPTY = pathlib.Path("/run/sshd")


@contextlib.contextmanager
def daemons(machines, directory):
    """Starts a daemon on each machine. Gives the directory with an `ssh` that reaches them, for the front of a PATH.

    Args:
      machines: of `namespaces.machines`, which kills what the daemons leave.
      directory: for keys, settings and logs; only this user may read it.

    Raises:
      UserError: one does not answer in time; with its log.
    """
    directory = pathlib.Path(directory).resolve()
    for name in ("host", "client"):
        keygen = [find_tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", directory / name]
        subprocess.run(keygen, check=True, timeout=_TIMEOUT_SECONDS)
    (directory / "sshd_config").write_text(_daemon_settings(directory))
    (directory / "ssh_config").write_text(_client_settings(directory))
    programs = directory / "bin"
    programs.mkdir()
    client = programs / "ssh"
    client.write_text(f'#!/bin/sh\nexec {find_tool("ssh")} -F {shlex.quote(str(directory / "ssh_config"))} "$@"\n')
    client.chmod(0o700)
    started = []
    with in_use(_EMPTY):
        try:
            for machine in machines:
                log = directory / f"sshd-{machine.address}.log"
                daemon = [find_tool("sshd"), "-D", "-f", directory / "sshd_config", "-E", log]
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
def in_use(directory):
    """Has a directory there, and in the end removes it if it was not there before and no other process is in here."""
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


def _daemon_settings(directory):
    return "\n".join(
        [
            f"Port {_PORT}",
            f"HostKey {directory / 'host'}",
            f"AuthorizedKeysFile {directory / 'client.pub'}",
            "StrictModes no",  # The directory may lie below one that others may write to, as /tmp.
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "UsePAM no",
            "UseDNS no",
            "MaxStartups 500",
            "PidFile none\n",
        ]
    )


def _client_settings(directory):
    return "\n".join(
        [
            "Host *",
            f"  Port {_PORT}",
            f"  IdentityFile {directory / 'client'}",
            "  IdentitiesOnly yes",
            "  UserKnownHostsFile /dev/null",  # Not into the user's own: these hosts are gone in a moment.
            "  GlobalKnownHostsFile /dev/null",
            "  StrictHostKeyChecking no",
            "  BatchMode yes",
            f"  ConnectTimeout {_TIMEOUT_SECONDS}",
            "  LogLevel ERROR\n",
        ]
    )


def _wait(machine, log, process, programs):
    """Returns when a login works."""
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
