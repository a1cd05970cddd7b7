"""What ended jobs leave behind: processes, memory, ports, temporary files."""

import contextlib
import dataclasses
import os
import pathlib
import re
import secrets
import tempfile
import time
from collections.abc import Sequence

import psutil

MARK = "CTR_TRAINER_TEST_MARK"
_DRAFT = re.compile(r".+\.[0-9a-f]{8}\.tmp")
_CHECKPOINT = re.compile(r"(draft-)?step-\d{10}")
_PATIENCE_SECONDS = 30
_SYSTEM_V = pathlib.Path("/proc/sysvipc/shm")
_SHARED = "/dev/shm/"


@dataclasses.dataclass(frozen=True)
class Trace:
    """Identifies the processes of a job by the variable MARK, and what they use: TMPDIR and shared memory."""

    mark: str
    temporary: pathlib.Path
    segments: set[str]

    @classmethod
    def below(cls, directory: pathlib.Path) -> "Trace":
        """Returns a new trace; TMPDIR is made below the directory."""
        temporary = pathlib.Path(tempfile.mkdtemp(prefix="tmp-", dir=directory))
        return cls(secrets.token_hex(8), temporary, set())

    @property
    def environment(self) -> dict[str, str]:
        """The variables to add to the environment of the job."""
        return {MARK: self.mark, "TMPDIR": str(self.temporary)}

    def look(self) -> None:
        """Remembers the shared memory that the job uses; call it before the job ends."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                self.segments.update(each.path for each in process.memory_maps() if each.path.startswith(_SHARED))
                self.segments.update(_system_v(process.pid))

    def processes(self) -> list[psutil.Process]:
        """Returns the running processes."""
        return [each for each in psutil.process_iter() if self._is_marked(each)]

    def _is_marked(self, process: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error, OSError):
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        return False


def left_behind(
    trace: Trace, directories: Sequence[pathlib.Path] = (), patience: float = _PATIENCE_SECONDS
) -> list[str]:
    """Waits at most `patience` seconds until a job has left nothing, and returns a text for each thing that is left.

    Unfinished files in `directories` count, unless they are in a checkpoint without a manifest, which the next start of
    the training removes.
    """
    deadline = time.monotonic() + patience
    while (found := _left(trace, directories)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _left(trace: Trace, directories: Sequence[pathlib.Path]) -> list[str]:
    found: list[str] = []
    for process in trace.processes():
        with contextlib.suppress(psutil.Error, OSError):
            found.append(f"process {process.pid}, {process.status()}: {' '.join(process.cmdline())[:200]}")
            found += [f"port {each.laddr.port} of process {process.pid}" for each in _listening(process)]
            found += [f"memory {name} of process {process.pid}" for name in _memory_files(process)]
    found += [f"shared memory {name}" for name in sorted(trace.segments) if _is_there(name)]
    found += [f"temporary file {path}" for path in sorted(trace.temporary.rglob("*"))]
    for directory in directories:
        found += [f"draft {path}" for path in sorted(pathlib.Path(directory).rglob("*")) if _is_draft(path)]
    return found


def _is_draft(path: pathlib.Path) -> bool:
    unfinished = _CHECKPOINT.fullmatch(path.parent.name) and not (path.parent / "manifest.json").exists()
    return bool(_DRAFT.fullmatch(path.name)) and not unfinished


def _listening(process: psutil.Process) -> list:
    return [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]


def _memory_files(process: psutil.Process) -> list[str]:
    """Returns the names of the anonymous files in memory that a process holds, see memfd_create(2)."""
    names = []
    for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.readlink(link))
    return sorted({name for name in names if name.startswith("/memfd:ctr_trainer")})


def _system_v(creator: int | None = None) -> set[str]:
    """Returns the numbers of the System V segments that a process made; None for any process."""
    lines = _SYSTEM_V.read_text().splitlines()[1:] if _SYSTEM_V.exists() else []
    return {line.split()[1] for line in lines if creator in (None, int(line.split()[4]))}


def _is_there(segment: str) -> bool:
    return os.path.exists(segment) if segment.startswith(_SHARED) else segment in _system_v()
