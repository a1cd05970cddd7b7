"""Finds what ended jobs leave behind: processes, memory, ports, temporary files. The last line is JSON.

python benchmarks/leftovers.py                     # all ends, about 20 s each on two cores
python benchmarks/leftovers.py rank_1_sigkill      # some of them
python benchmarks/leftovers.py --help              # their names
"""

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import resource
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence

import psutil
from sides import ROOT, environment

MARK = "CTR_TRAINER_MARK"
_DRAFT = re.compile(r".+\.[0-9a-f]{8}\.tmp")
_CHECKPOINT = re.compile(r"(draft-)?step-\d{10}")
_START_SECONDS, _END_SECONDS, _PATIENCE_SECONDS = 240, 120, 30
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


class Job:
    """A training on `directory/data` that runs until it is ended; with one worker it runs without horovodrun."""

    def __init__(self, directory: pathlib.Path, workers: int, *flags: str) -> None:
        self.trace = Trace.below(directory)
        self.model_dir = pathlib.Path(tempfile.mkdtemp(prefix="model-", dir=directory))
        train = [sys.executable, "-m", "ctr_trainer", "train", f"--train_data={directory / 'data'}"]
        train += [f"--model_dir={self.model_dir}", "--model=fm", "--batch_size=64", "--epochs=0", "--max_steps=1000000"]
        train += ["--save_checkpoints_steps=50", "--sync_steps=5", "--log_steps=10", "--stall_timeout=30"]
        train += ["--recipe=none", *flags]
        launcher = ["horovodrun", "-np", str(workers), "--gloo"] if workers > 1 else []
        variables = environment(CTR_TRAINER_THREADS="1", **self.trace.environment)
        with open(directory / "log", "wb") as log:
            self.launcher = psutil.Popen(
                [*launcher, *train], env=variables, stdout=log, stderr=log, start_new_session=True
            )
        self._log = directory / "log"

    def __enter__(self) -> "Job":
        """Waits for the first checkpoint."""
        self._await(lambda: any(self.model_dir.glob("checkpoints/*/manifest.json")), "a checkpoint", _START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.trace.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.launcher.wait(_END_SECONDS)

    def rank(self, number: int) -> psutil.Process:
        """Returns the process of a worker."""
        return self._process(lambda each: each.environ().get("HOROVOD_RANK", "0") == str(number), "train")

    def service(self) -> psutil.Process:
        """Returns the process of the embedding service."""
        return self._process(lambda each: True, "serve")

    def _process(self, is_it: Callable[[psutil.Process], bool], command: str) -> psutil.Process:
        for each in self.trace.processes():
            line = each.cmdline()
            if line[1:4] == ["-m", "ctr_trainer", command] and is_it(each):
                return each
        raise SystemExit(f"no process of the job runs {command}")

    def _await(self, condition: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.launcher.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"no {what} after {seconds} s:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)


def _signal(whom: Callable[[Job], psutil.Process], number: int) -> Callable[[Job], None]:
    """Returns a function that sends a signal to the process that `whom` returns."""
    return lambda job: whom(job).send_signal(number)


def _all(job: Job) -> None:
    """Sends SIGTERM to every process, as a machine does when it shuts down."""
    for process in job.trace.processes():
        with contextlib.suppress(psutil.Error):
            process.terminate()


def _fill_disk(job: Job) -> None:
    """Makes the kernel refuse the service files of more than 64 bytes, as a full disk would."""
    resource.prlimit(job.service().pid, resource.RLIMIT_FSIZE, (64, 64))


def _launcher(job: Job) -> psutil.Process:
    return job.launcher


def _rank(number: int) -> Callable[[Job], psutil.Process]:
    return lambda job: job.rank(number)


_SHARED_ROWS = (2, "--embedding_service=shared")
# (workers, flags...) of a job, and the function that ends it.
ENDS = {
    "launcher_sigkill": ((2,), _signal(_launcher, signal.SIGKILL)),
    "launcher_sigterm": ((2,), _signal(_launcher, signal.SIGTERM)),
    "launcher_sigint": ((2,), _signal(_launcher, signal.SIGINT)),
    "rank_0_sigkill": ((2,), _signal(_rank(0), signal.SIGKILL)),
    "rank_0_sigterm": ((2,), _signal(_rank(0), signal.SIGTERM)),
    "rank_0_sigstop": ((2,), _signal(_rank(0), signal.SIGSTOP)),
    "rank_1_sigkill": ((2,), _signal(_rank(1), signal.SIGKILL)),
    "rank_1_sigterm": ((2,), _signal(_rank(1), signal.SIGTERM)),
    "rank_1_sigstop": ((2,), _signal(_rank(1), signal.SIGSTOP)),
    "service_sigkill": ((2,), _signal(Job.service, signal.SIGKILL)),
    "all_sigterm": ((2,), _all),
    "full_disk": ((2,), _fill_disk),
    "shared_launcher_sigkill": (_SHARED_ROWS, _signal(_launcher, signal.SIGKILL)),
    "shared_launcher_sigterm": (_SHARED_ROWS, _signal(_launcher, signal.SIGTERM)),
    "shared_rank_0_sigkill": (_SHARED_ROWS, _signal(_rank(0), signal.SIGKILL)),
    "shared_rank_1_sigkill": (_SHARED_ROWS, _signal(_rank(1), signal.SIGKILL)),
    "shared_rank_1_sigint": (_SHARED_ROWS, _signal(_rank(1), signal.SIGINT)),
    "alone_sigkill": ((1,), _signal(_launcher, signal.SIGKILL)),
    "alone_sigterm": ((1,), _signal(_launcher, signal.SIGTERM)),
    "alone_sigint": ((1,), _signal(_launcher, signal.SIGINT)),
}


def left_after(end: str, directory: pathlib.Path) -> list[str]:
    """Returns what a job has left behind that was ended by one of ENDS; see `left_behind`."""
    (workers, *flags), act = ENDS[end]
    with Job(directory, workers, *flags) as job:
        job.trace.look()
        act(job)
        job.launcher.wait(_END_SECONDS)
        return left_behind(job.trace, [job.model_dir])


def make_data(directory: pathlib.Path) -> None:
    """Makes the data set of the jobs."""
    from ctr_trainer.data.convert import convert
    from ctr_trainer.features.spec import FeatureSpec

    spec = FeatureSpec.load(ROOT / "configs" / "features" / "demo.toml")
    convert("synthetic", None, directory / "made", spec, rows=20_000, progress=False)
    (directory / "made" / "train").rename(directory / "data")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ends", nargs="*", help=f"of {', '.join(ENDS)}; all if none is given")
    ends = parser.parse_args().ends or list(ENDS)
    if unknown := [end for end in ends if end not in ENDS]:
        parser.error(f"no end {unknown[0]}; there are {', '.join(ENDS)}")
    left = {}
    with tempfile.TemporaryDirectory() as directory:
        make_data(pathlib.Path(directory))
        for number, end in enumerate(ends, 1):
            left[end] = left_after(end, pathlib.Path(directory))
            print(f"{number} of {len(ends)}, {end}: {'; '.join(left[end]) or 'nothing left'}", flush=True)
    print(json.dumps({"ends": len(ends), "left_behind": sum(map(len, left.values())), "by_end": left}))


if __name__ == "__main__":
    main()
