"""Jobs on several machines that reach each other by SSH over a limited network."""

import contextlib
import dataclasses
import fcntl
import os
import pathlib
import shlex
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

from ctr_trainer.bench import namespaces
from ctr_trainer.bench.jobs import Job, Ranks, environment
from ctr_trainer.bench.namespaces import Machine, tool
from ctr_trainer.embedding.service.local_service import LocalService
from ctr_trainer.system.messages.errors import UserError

SSH_PACKAGES = {"sshd": "openssh-server", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
_SSH_PORT = 22
_TIMEOUT_SECONDS = 30
_POLL_SECONDS = 0.05
# sshd requires this empty directory for the process that authenticates a client.
_SSHD_DIRECTORY = pathlib.Path("/run/sshd")
_SERVICE_SECONDS = 120.0


@contextlib.contextmanager
def ssh_daemons(machines: Sequence[Machine], directory: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """Starts an SSH daemon on each machine, and stops the daemons at the end of the block.

    `namespaces.machines` kills any processes that the daemons leave running. `directory` is for keys, settings and
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
    (directory / "sshd_config").write_text(_sshd_settings(directory))
    (directory / "ssh_config").write_text(_ssh_settings(directory))
    programs = directory / "bin"
    programs.mkdir()
    client = programs / "ssh"
    client.write_text(f'#!/bin/sh\nexec {tool("ssh")} -F {shlex.quote(str(directory / "ssh_config"))} "$@"\n')
    client.chmod(0o700)
    started = []
    with directory_in_use(_SSHD_DIRECTORY):
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


def _sshd_settings(directory: pathlib.Path) -> str:
    return "\n".join(
        [
            f"Port {_SSH_PORT}",
            f"HostKey {directory / 'host'}",
            f"AuthorizedKeysFile {directory / 'client.pub'}",
            "StrictModes no",  # The parent directory may be writable by others, such as /tmp.
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "UsePAM no",
            "UseDNS no",
            "MaxStartups 500",
            "PidFile none\n",
        ]
    )


def _ssh_settings(directory: pathlib.Path) -> str:
    return "\n".join(
        [
            "Host *",
            f"  Port {_SSH_PORT}",
            f"  IdentityFile {directory / 'client'}",
            "  IdentitiesOnly yes",
            "  UserKnownHostsFile /dev/null",  # The hosts are temporary, so the user's own file must not list them.
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


class MachineService(LocalService):
    """A `LocalService` that runs on a machine and listens on its address.

    `directory` has its log and `token_file`, the token for its clients; `data_dir` has the jobs' model directories.
    """

    def __init__(self, machine: Machine, directory: pathlib.Path, data_dir: pathlib.Path) -> None:
        self._machine = machine
        self.token_file = directory / "token"
        self.token_file.touch(mode=0o600)
        super().__init__(data_dir, directory / "service.log", _SERVICE_SECONDS)
        self.token_file.write_text(self.token)

    def _command(self, data_dir: str | os.PathLike, port_file: pathlib.Path) -> list[str]:
        command = super()._command(data_dir, port_file)
        return self._machine.command([*command, f"--bind={self._machine.address}:0"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class NetworkJob(Job):
    """A `Job` with one worker per machine, a limited network, and its own embedding service on the first machine.

    `gbit` is the limit of the network in Gbit/s, 0 for none; `programs` has the `ssh` that reaches the machines.
    """

    machines: Sequence[Machine]
    gbit: float
    programs: pathlib.Path

    def launcher(self) -> tuple[str, ...]:
        """Returns the command that runs horovodrun on the first machine."""
        hosts = ",".join(f"{each.address}:1" for each in self.machines)
        run = ["horovodrun", "-np", self.workers, "-H", hosts, "--gloo"]
        return tuple(self.machines[0].command([*run, "--network-interface", namespaces.INTERFACE]))

    def run(self, directory: str | os.PathLike[str], timeout: float) -> Ranks:
        """Limits the network, starts the service and runs the job to its end, see `Job.run`."""
        namespaces.limit(self.machines, self.gbit)
        path = os.pathsep.join([str(self.programs), environment(1)["PATH"]])
        runs = pathlib.Path(directory).resolve().parent
        runs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as own, contextlib.ExitStack() as stack:
            service = MachineService(self.machines[0], pathlib.Path(own), runs)
            stack.enter_context(service)
            flags = (*self.flags, f"--embedding_service={service.address}", f"--token_file={service.token_file}")
            # sshd does not set a command's PATH from the user's profile, and each machine has one core.
            variables = (("PATH", path), ("CTR_TRAINER_THREADS", "1"), ("OMP_NUM_THREADS", "1"))
            job = dataclasses.replace(self, flags=flags, environment=(*self.environment, *variables))
            return Job.run(job, directory, timeout)
