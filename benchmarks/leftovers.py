"""What jobs leave behind, however they end: processes, memory, ports, temporary files. Prints one JSON object last.

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

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[1]
MARK = "CTR_TRAINER_MARK"
_DRAFT = re.compile(r".+\.[0-9a-f]{8}\.tmp")
_CHECKPOINT = re.compile(r"(draft-)?step-\d{10}")
_START_SECONDS, _END_SECONDS, _PATIENCE_SECONDS = 240, 120, 30
_SYSTEM_V = pathlib.Path("/proc/sysvipc/shm")
_SHARED = "/dev/shm/"


@dataclasses.dataclass(frozen=True)
class Trace:
    """By what the processes of a job are known, and the files that they make.

    Attributes:
      mark: value of the variable MARK in their environment.
      temporary: their TMPDIR, of their own.
      segments: names of the shared memory that they were seen to use.
    """

    mark: str
    temporary: pathlib.Path
    segments: set

    @classmethod
    def below(cls, directory):
        """-> a new one; TMPDIR is made below the directory."""
        temporary = pathlib.Path(tempfile.mkdtemp(prefix="tmp-", dir=directory))
        return cls(secrets.token_hex(8), temporary, set())

    @property
    def environment(self):
        """What is to be added to the environment of the job."""
        return {MARK: self.mark, "TMPDIR": str(self.temporary)}

    def look(self):
        """Notes which shared memory the job uses; call it before the job ends."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                self.segments.update(each.path for each in process.memory_maps() if each.path.startswith(_SHARED))
                self.segments.update(_system_v(process.pid))

    def processes(self):
        """-> list of the processes that run, as `psutil.Process`."""
        return [each for each in psutil.process_iter() if self._is_marked(each)]

    def _is_marked(self, process):
        with contextlib.suppress(psutil.Error, OSError):
            return process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
        return False


def left_behind(trace, directories=(), patience=_PATIENCE_SECONDS):
    """-> list of texts, one for each thing that a job has left; [] once there is nothing.

    Args:
      trace: `Trace` of the job.
      directories: those that the job wrote to: no drafts of files may be left in them. Those of a checkpoint without
        its manifest do not count: if the process that wrote it is killed, the next start of the training removes it.
      patience: seconds to wait until there is nothing.
    """
    deadline = time.monotonic() + patience
    while (found := _left(trace, directories)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _left(trace, directories):
    found = []
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


def _is_draft(path):
    unfinished = _CHECKPOINT.fullmatch(path.parent.name) and not (path.parent / "manifest.json").exists()
    return bool(_DRAFT.fullmatch(path.name)) and not unfinished


def _listening(process):
    return [each for each in process.net_connections("inet") if each.status == psutil.CONN_LISTEN]


def _memory_files(process):
    """-> names of the anonymous files in memory that a process holds, see memfd_create(2)."""
    names = []
    for link in pathlib.Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            names.append(os.readlink(link))
    return sorted({name for name in names if name.startswith("/memfd:ctr_trainer")})


def _system_v(creator=None):
    """-> the numbers of the System V segments that a process, or any one, has made."""
    lines = _SYSTEM_V.read_text().splitlines()[1:] if _SYSTEM_V.exists() else []
    return {line.split()[1] for line in lines if creator in (None, int(line.split()[4]))}


def _is_there(segment):
    return os.path.exists(segment) if segment.startswith(_SHARED) else segment in _system_v()


class Job:
    """A training of two workers, or of one without horovodrun, that goes on until it is ended; a context manager.

    Args:
      directory: with the data set `data`; the job writes below it.
      workers: 2 or 1.
      flags: more flags of `train`.

    Attributes:
      trace: `Trace` of it.
      model_dir: where it trains.
    """

    def __init__(self, directory, workers, *flags):
        self.trace = Trace.below(directory)
        self.model_dir = pathlib.Path(tempfile.mkdtemp(prefix="model-", dir=directory))
        train = [sys.executable, "-m", "ctr_trainer", "train", f"--train_data={directory / 'data'}"]
        train += [f"--model_dir={self.model_dir}", "--model=fm", "--batch_size=64", "--epochs=0", "--max_steps=1000000"]
        train += ["--save_checkpoints_steps=50", "--sync_steps=5", "--log_steps=10", "--stall_timeout=30", *flags]
        launcher = ["horovodrun", "-np", str(workers), "--gloo"] if workers > 1 else []
        environment = {**os.environ, "CTR_TRAINER_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", **self.trace.environment}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment["PATH"] = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
        with open(directory / "log", "wb") as log:
            self.launcher = psutil.Popen(
                [*launcher, *train], env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._log = directory / "log"

    def __enter__(self):
        """Returns once it has saved."""
        self._await(lambda: any(self.model_dir.glob("checkpoints/*/manifest.json")), "a checkpoint", _START_SECONDS)
        return self

    def __exit__(self, *_):
        for process in self.trace.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.launcher.wait(_END_SECONDS)

    def rank(self, number):
        """-> the process of a worker."""
        return self._process(lambda each: each.environ().get("HOROVOD_RANK", "0") == str(number), "train")

    def service(self):
        """-> the process of the embedding service."""
        return self._process(lambda each: True, "serve")

    def await_end(self):
        """Returns once the launcher has ended."""
        self.launcher.wait(_END_SECONDS)

    def _process(self, is_it, command):
        for each in self.trace.processes():
            line = each.cmdline()
            if line[1:4] == ["-m", "ctr_trainer", command] and is_it(each):
                return each
        raise SystemExit(f"no process of the job runs {command}")

    def _await(self, condition, what, seconds):
        deadline = time.monotonic() + seconds
        while not condition():
            if self.launcher.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"no {what} after {seconds} s:\n{self._log.read_text(errors='replace')[-3000:]}")
            time.sleep(0.1)


def _signal(whom, number):
    """-> f(job) that sends a signal to the process that `whom(job)` returns."""
    return lambda job: whom(job).send_signal(number)


def _all(job):
    """As a machine that shuts down: every process gets SIGTERM."""
    for process in job.trace.processes():
        with contextlib.suppress(psutil.Error):
            process.terminate()


def _fill_disk(job):
    """From here on the kernel refuses the service files of more than 64 bytes, as a full disk would."""
    resource.prlimit(job.service().pid, resource.RLIMIT_FSIZE, (64, 64))


def _launcher(job):
    return job.launcher


def _rank(number):
    return lambda job: job.rank(number)


_SHARED_ROWS = (2, "--embedding_service=shared")
# By name: (workers, flags...), f(job) that ends it.
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


def left_after(end, directory):
    """-> list of texts, what a job has left behind that was ended so; see `left_behind`.

    Args:
      end: one of ENDS.
      directory: of `make_data`.
    """
    (workers, *flags), act = ENDS[end]
    with Job(directory, workers, *flags) as job:
        job.trace.look()
        act(job)
        job.await_end()
        return left_behind(job.trace, [job.model_dir])


def make_data(directory):
    """Makes the data set of the jobs."""
    from ctr_trainer.data.convert import convert
    from ctr_trainer.features.spec import FeatureSpec

    spec = FeatureSpec.load(ROOT / "configs" / "features" / "demo.toml")
    convert("synthetic", None, directory / "made", spec, rows=20_000, progress=False)
    (directory / "made" / "train").rename(directory / "data")


def main():
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
