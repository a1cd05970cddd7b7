"""Runs training jobs to measure them."""

import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import tqdm

from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.messages.log_lines import format_seconds
from ctr_trainer.system.processes import child
from ctr_trainer.system.processes.hardware import usable_cores

# The initial estimate for one worker on one core: its start and 200 short steps, if nothing else runs.
_SECONDS = 12.0
_ROOT = str(pathlib.Path(__file__).resolve().parents[2])
_WORKER = ("-m", "ctr_trainer.bench.worker")

# The results of a run by rank, see `worker.result`; the runs of a job by round; rounds by job.
Ranks = list[dict[str, Any]]
Rounds = list[Ranks]
Runs = dict[str, Rounds]


def rate(ranks: Ranks) -> float:
    """Returns the examples/s of all ranks together."""
    return sum(rank["examples_per_sec"] for rank in ranks)


class Progress:
    """Prints to stderr the estimated time of all runs and, before each run, the estimated time left.

    On a terminal it redraws `deepfm 5 Gbit plain: 4/10 runs |###   | 01:10, about 2 min 30 s left`; elsewhere it prints
    one line for each run. The weight of a run is its number of workers divided by the number of cores, so that a run of
    four workers on two cores counts as two runs of one worker. Until the first run has ended, a constant estimates the
    time of a run; then the mean so far does.
    """

    def __init__(
        self,
        jobs: "Sequence[Job]",
        rounds: int,
        cores: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weights = {job.name: max(job.workers / (cores or usable_cores()), 1.0) for job in jobs}
        self._runs, self._number = rounds * len(jobs), 0
        self._left, self._done, self._spent = rounds * sum(self._weights.values()), 0.0, 0.0
        self._clock, self._draws = clock, sys.stderr.isatty()
        self._say(f"{self._runs} runs, about {format_seconds(self.seconds_left())} if nothing else runs here")
        self._bar = tqdm.tqdm(
            total=self._runs,
            bar_format="{desc}{n_fmt}/{total_fmt} runs |{bar:20}| {elapsed}{postfix}",
            disable=not self._draws,
        )
        self._show(0)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def seconds_left(self) -> float:
        """Returns the estimated time of all runs that have not ended."""
        return self._left * (self._spent / self._done if self._done else _SECONDS)

    def begin(self, name: str) -> None:
        """Shows that a run of this job begins."""
        self._number += 1
        self._began = self._clock()
        self._bar.set_description(name)
        if not self._draws:
            self._say(f"run {self._number} of {self._runs}, {name}; about {format_seconds(self.seconds_left())} left")

    def end(self, name: str) -> None:
        """Counts a run of this job that has ended."""
        self._spent += self._clock() - self._began
        self._done += self._weights[name]
        self._count(name)

    def skip(self, name: str) -> None:
        """Counts a run of this job that is skipped."""
        self._number += 1
        self._count(name)

    def _count(self, name: str) -> None:
        self._left -= self._weights[name]
        self._show(1)

    def _show(self, ended: int) -> None:
        self._bar.set_postfix_str(f"about {format_seconds(self.seconds_left())} left", refresh=False)
        self._bar.update(ended)
        self._bar.refresh()

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of `workers` processes that train with the flags of `train`, on --train_data or, without it, on W1.

    Attributes:
      name: the name in the report.
      workers: number of processes; one worker runs without horovodrun.
      flags: flags of `train`, such as "--batch_size=512".
      steps, warmup: number of measured steps, and of steps before them.
      core_shares: number of equal parts into which the cores of a machine are divided; each worker gets one part. 0
        means one part per worker.
      environment: (name, value) of additional environment variables.
    """

    name: str
    workers: int
    flags: tuple[str, ...]
    steps: int
    warmup: int
    core_shares: int = 0
    environment: tuple[tuple[str, str], ...] = ()

    def launcher(self) -> tuple[str, ...]:
        """Returns the command that starts a program as each of the workers; () for one worker."""
        if self.workers == 1:
            return ()
        require_horovodrun()
        return ("horovodrun", "-np", str(self.workers), "--gloo")

    def run(self, directory: str | os.PathLike[str], timeout: float) -> Ranks:
        """Runs the job to its end, in a new model directory that is removed afterwards.

        The workers write their results to `directory`, which must not exist yet.

        Returns:
          list of the ranks' results, see `worker.result`. Each also has `job_seconds`, the time from the start of the
          job's processes to their end.

        Raises:
          UserError: the job failed (the message has its last lines), or horovodrun is not installed.
        """
        directory = pathlib.Path(directory).resolve()
        directory.mkdir(parents=True)
        flags = [*self.flags, f"--model_dir={directory / 'model'}", f"--result_dir={directory}"]
        flags += [f"--max_steps={self.warmup + self.steps}", "--epochs=0", f"--phase_steps={self.warmup}"]
        flags += [f"--core_shares={self.core_shares}", "--save_checkpoints_steps=0", "--summary_steps=0"]
        start = time.perf_counter()
        try:
            child.run_command(
                [*self.launcher(), sys.executable, *_WORKER, *flags],
                f"the job {self.name!r}",
                timeout,
                env={**environment(self.core_shares or self.workers), **dict(self.environment)},
                merge_stderr=True,
            )
        finally:
            shutil.rmtree(directory / "model", ignore_errors=True)
        seconds = time.perf_counter() - start
        files = [directory / f"rank-{rank}.json" for rank in range(self.workers)]
        missing = [file.name for file in files if not file.exists()]
        if missing:
            raise UserError(f"the job {self.name!r} ended without an error, but did not write {', '.join(missing)}")
        return [{**json.loads(file.read_text()), "job_seconds": seconds} for file in files]


def environment(workers: int) -> dict[str, str]:
    """Returns the environment of a job.

    This interpreter comes first on the PATH, each worker has its share of the machine's cores as threads, and
    TensorFlow logs errors only.
    """
    threads = str(max(usable_cores() // workers, 1))
    python_path = os.environ.get("PYTHONPATH")
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CTR_TRAINER_THREADS": threads,
        "OMP_NUM_THREADS": threads,
        "NUMBA_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "PATH": _path(),
        "PYTHONPATH": os.pathsep.join([_ROOT, python_path] if python_path else [_ROOT]),
    }


def require_horovodrun() -> None:
    """Raises UserError if horovodrun is not installed."""
    if shutil.which("horovodrun", path=_path()) is None:
        raise UserError(
            "several workers need horovodrun, which is neither next to this Python nor on the PATH: build Horovod with "
            "`python -m ctr_trainer.system.installation.build_horovod`, or measure one worker with --workers=1"
        )


def run_rounds(
    jobs: Sequence[Job], rounds: int, directory: str | os.PathLike[str], timeout: float, seed: int | None = None
) -> tuple[Runs, dict[str, str]]:
    """Runs all jobs in turn, `rounds` times, so that a drift of the machine's speed affects all jobs. Shows `Progress`.

    The names of the jobs must differ. A job that fails is not run again. The temporary results are in `directory`,
    which is created if it does not exist. `timeout` is the longest time of one run, in seconds. The first round uses
    `seed` as --seed, and each further round the next integer, so that the spread of the AUC includes the effect of the
    seed. None keeps the seeds of the jobs.

    Returns:
      (runs, failed): the results of each job that did not fail, and the error messages of the others, both by name.

    Raises:
      UserError: all jobs failed.
    """
    if any(job.workers > 1 for job in jobs):
        require_horovodrun()
    runs: Runs = {job.name: [] for job in jobs}
    failed: dict[str, str] = {}
    with Progress(jobs, rounds) as progress, scratch(directory) as own:
        for number in range(rounds):
            for place, job in enumerate(jobs):
                if job.name in failed:
                    progress.skip(job.name)
                    continue
                if seed is not None:
                    job = dataclasses.replace(job, flags=(*job.flags, f"--seed={seed + number}"))
                progress.begin(job.name)
                try:
                    runs[job.name].append(job.run(os.path.join(own, f"run-{number}-{place}"), timeout))
                except UserError as error:
                    failed[job.name] = str(error)
                progress.end(job.name)
    if len(failed) == len(jobs):
        raise UserError("\n".join(failed.values()))
    return {name: results for name, results in runs.items() if name not in failed}, failed


def scratch(directory: str | os.PathLike[str]) -> "tempfile.TemporaryDirectory[str]":
    """Returns a context manager that creates a temporary directory in `directory`, and `directory` if necessary."""
    os.makedirs(directory, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="runs-", dir=directory)


def _path() -> str:
    return os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
