"""One start of all workers: a `horovodrun` process, its child processes, and why they have ended."""

import contextlib
import dataclasses
import enum
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import BinaryIO, TextIO

import psutil

from ctr_trainer.launch.hosts import Host, listed, slots
from ctr_trainer.launch.worker import GATE
from ctr_trainer.ranks.endings import records
from ctr_trainer.ranks.endings.records import ERRORS, EndRecord, first_cause, read_records
from ctr_trainer.ranks.notices import ATTEMPT
from ctr_trainer.settings.command_flags import LaunchFlags
from ctr_trainer.system.messages import errors
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import reach
from ctr_trainer.system.processes.child import ended_with_parent

_OF_A_WORKER = re.compile(r"(?:.*\r)?\[\d+\]<(stdout|stderr)>:.*", re.DOTALL)
_EXIT = re.compile(r"Process (\d+) exit with status code (\d+)\.")
# The command of a process that ends after all others, and removes the semaphores of a killed horovodrun from /dev/shm.
_TRACKER = "multiprocessing.resource_tracker"
_POLL_SECONDS, _READ_SECONDS, _KILL_SECONDS, _CLOSING_SECONDS = 0.02, 5.0, 10.0, 3.0


class Kind(enum.Enum):
    """The kind of an `Ending`."""

    FINISHED = "finished"
    LOST = "lost"  # A rank, a host or a service is lost or hangs.
    FAILED = "failed"  # An unexpected error.
    REFUSED = "refused"  # An error that the user can correct.
    CHANGED = "changed"  # The launcher has stopped the workers in order to start them on other hosts.


_KINDS = {
    errors.REFUSED: Kind.REFUSED,
    errors.USAGE: Kind.REFUSED,
    errors.FAILED: Kind.FAILED,
    errors.LOST: Kind.LOST,
}
# The statuses of workers that report why they end, or that a signal has asked to end.
_REPORTED = {*_KINDS, errors.INTERRUPTED, errors.TERMINATED}


@dataclasses.dataclass(frozen=True)
class Ending:
    """The end of an `Attempt`.

    Attributes:
      reason: sentence, without its full stop.
      rank: the first rank that failed; None if no rank failed, or if it is unknown.
    """

    kind: Kind
    reason: str
    rank: int | None = None


class Output:
    """What `horovodrun` prints about its workers: `exits`, the (rank, nonzero status) of each, and its `last` line."""

    def __init__(self) -> None:
        self.exits: list[tuple[int, int]] = []
        self.last = ""

    def take(self, line: str) -> None:
        """Processes a line, without its newline."""
        if _OF_A_WORKER.fullmatch(line):
            return
        if found := _EXIT.search(line):
            self.exits.append((int(found[1]), int(found[2])))
        elif line.strip():
            self.last = line.strip()

    def ending(self, status: int, written: Sequence[EndRecord]) -> Ending:
        """Returns the `Ending` for the exit status of `horovodrun` and the records that the workers have written."""
        if status == 0:
            return Ending(Kind.FINISHED, "finished")
        killed = [exit for exit in self.exits if exit[1] not in _REPORTED]
        first = first_cause(written) if written else None
        if first is not None and (first.kind is records.RecordKind.CAUSE or not killed):
            kind = _KINDS.get(first.status, Kind.LOST)
            # A rank that reports the loss of a service, or of another rank, is not the one that failed.
            is_at_fault = first.kind is records.RecordKind.CAUSE and (kind is not Kind.LOST or first.is_of_killed)
            return Ending(kind, " ".join(first.message.split()), first.rank if is_at_fault else None)
        if not self.exits:
            return Ending(Kind.LOST, f"horovodrun ended with status {status}: {self.last or 'it printed nothing'}")
        # Workers that horovodrun stopped because another worker ended are not the cause.
        own = [exit for exit in self.exits if exit[1] != errors.TERMINATED]
        rank, status = [*killed, *own, *self.exits][0]
        return Ending(_KINDS.get(status, Kind.LOST), f"rank {rank} ended {_how(status)}", rank)


def _how(status: int) -> str:
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(status - 128).name}"
    return f"with status {status}"


class Attempt:
    """A `horovodrun` process that starts the workers. Their output is forwarded immediately, prefixed with their ranks.

    Create it in the main thread. If this process is killed, the kernel kills `horovodrun`. The processes between it and
    the workers notice this, and end the workers.

    Args:
      name: unique name, `JOB.NUMBER`, which is in the environment of all its processes. Also an attribute.
      hosts: the hosts, each with as many slots as workers. Also an attribute.
      errors: directory in which the workers of this host write why they end.
      waits: whether the workers, all of them on this host, wait for `release` before they begin.

    `lost_at`: time at which the failure of a worker was noticed, in seconds since 1970; None if no worker has failed.

    Raises UserError: horovodrun is not installed.
    """

    def __init__(
        self,
        name: str,
        hosts: tuple[Host, ...],
        command: Sequence[str],
        flags: LaunchFlags,
        environment: Mapping[str, str],
        errors: str,
        waits: bool = False,
    ) -> None:
        self.hosts, self.workers, self._errors = hosts, slots(hosts), errors
        self.lost_at: float | None = None
        self.name, self._command, self._output = name, command, Output()
        path = os.path.join(errors, f"{name}.go")
        if waits:
            os.mkfifo(path)
        self._gate = io.FileIO(path, "r+") if waits else None  # Its end, even by a kill, ends the waiting workers.
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [*_horovodrun(hosts, flags), *command],
            env={
                **environment,
                ATTEMPT: name,
                ERRORS: errors,
                "PYTHONUNBUFFERED": "1",
                **({GATE: path} if waits else {}),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal goes to the launcher, which forwards it.
            preexec_fn=ended_with_parent(signal.SIGKILL),  # With SIGTERM, horovodrun may deadlock.
        )
        pipes = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._pass_on, args=each, daemon=True) for each in pipes]
        for reader in self._readers:
            reader.start()

    @property
    def has_ended(self) -> bool:
        """Whether horovodrun has ended."""
        return self._process.poll() is not None

    def release(self) -> None:
        """Lets waiting workers begin."""
        if self._gate is not None:
            self._gate.write(bytes(self.workers))

    def terminate(self) -> None:
        """Asks the workers of this host, which notify the others, to save and end; without any, asks `horovodrun`."""
        workers = [process for process in psutil.process_iter() if self._is_ours(process, self._command)]
        for process in workers or [self._process]:
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    def end(self, seconds: float) -> Ending:
        """Waits for the end, kills the remaining processes on this host, and returns the `Ending`.

        `seconds`: longest time to wait; at most 3 s after a worker has written why it ends, because it has then saved.
        """
        deadline = time.monotonic() + seconds
        while not self.has_ended and time.monotonic() < deadline:
            if self.records():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_CLOSING_SECONDS)
                break
            time.sleep(_POLL_SECONDS)
        self._kill_all()
        if self._gate is not None:
            self._gate.close()
        for reader in self._readers:
            reader.join(_READ_SECONDS)
        with self._lock:
            return self._output.ending(self._process.returncode, self.records())

    def records(self) -> list[EndRecord]:
        """Returns the records of the workers that have ended with an error or by a signal."""
        return read_records(self._errors, self.name)

    def _kill_all(self) -> None:
        """Kills the processes of this attempt on this host, and waits until they have ended."""
        deadline = time.monotonic() + _KILL_SECONDS
        while found := [process for process in psutil.process_iter() if self._is_ours(process)]:
            if time.monotonic() > deadline:
                numbers = ", ".join(str(process.pid) for process in found)
                raise UserError(f"worker processes {numbers} did not end within {_KILL_SECONDS:g} s after SIGKILL")
            for process in found:
                with contextlib.suppress(psutil.Error):
                    if _TRACKER not in " ".join(process.cmdline()):
                        process.kill()
            self._process.poll()
            time.sleep(_POLL_SECONDS)
        self._process.wait(_KILL_SECONDS)

    def _is_ours(self, process: psutil.Process, command: Sequence[str] = ()) -> bool:
        """Whether a process on this host is of this attempt and, if `command` is given, runs this command."""
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(ATTEMPT) == self.name and process.status() != psutil.STATUS_ZOMBIE:
                return not command or process.cmdline()[1:] == command[1:]
        return False

    def _pass_on(self, pipe: BinaryIO, stream: TextIO) -> None:
        for line in pipe:
            with self._lock:
                self._output.take(line.decode(errors="replace").rstrip("\n"))
                if self._output.exits and self.lost_at is None:
                    self.lost_at = time.time()
            with contextlib.suppress(OSError, ValueError):  # If the reader has ended, the training continues.
                stream.buffer.write(line)
                stream.buffer.flush()


def _horovodrun(hosts: tuple[Host, ...], flags: LaunchFlags) -> list[str]:
    """Returns the `horovodrun` part of the command."""
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("horovodrun", path=path)
    if program is None:
        raise UserError(
            "workers need horovodrun, which is neither next to this Python nor on the PATH: build Horovod with "
            "`python -m ctr_trainer.system.installation.build_horovod`"
        )
    options = ["-np", slots(hosts), "-H", listed(hosts), "--gloo", "--start-timeout", flags.start_timeout]
    # If all workers are on this host, they connect over loopback, and horovodrun refuses any other interface.
    if flags.network_interface and not all(reach.is_here(host.name) for host in hosts):
        options += ["--network-interface", flags.network_interface]
    if flags.ssh_port:
        options += ["--ssh-port", flags.ssh_port]
    return [program, *map(str, options)]
