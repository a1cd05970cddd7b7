"""Training jobs that are run to be measured."""

import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

import tqdm

from ctr_trainer.messages.errors import UserError
from ctr_trainer.messages.log_lines import format_seconds
from ctr_trainer.processes import child
from ctr_trainer.processes.hardware import usable_cores

# Of a run of a worker on a core: its start and 200 short steps, where nothing else runs.
_SECONDS = 12.0
# Horovod's own pace takes 1,200 steps and more; this one 135.
_PACE = {
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "3",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": "8",
}
AUTOTUNE_LEAST_STEPS = 60  # Of a search that is to leave some rows.
_ROOT = str(pathlib.Path(__file__).resolve().parents[2])
_WORKER = ("-m", "ctr_trainer.bench.worker")


class Progress:
    """Tells on stderr at the start about how long all runs take, and with each run what is left.

    At a terminal it redraws `deepfm 5 Gbit plain: 4/10 runs |###   | 01:10, about 2 min 30 s left`; elsewhere a run has
    a line. A run counts by its workers over the cores, so one of four workers on two cores counts as two of one worker.
    Until a run has ended, how long one takes is a guess; then it is the mean so far.

    Args:
      jobs: list of jobs, with `name` and `workers`.
      rounds: that each job is to run.
      cores: of this machine; None asks it.
      clock: f() -> seconds.
    """

    def __init__(self, jobs, rounds, cores=None, clock=time.monotonic):
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

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._bar.close()

    def seconds_left(self):
        """-> about how long all runs that have not ended take."""
        return self._left * (self._spent / self._done if self._done else _SECONDS)

    def begin(self, name):
        """Shows that a run of the job of this name begins."""
        self._number += 1
        self._began = self._clock()
        self._bar.set_description(name)
        if not self._draws:
            self._say(f"run {self._number} of {self._runs}, {name}; about {format_seconds(self.seconds_left())} left")

    def end(self, name):
        """Counts a run that has ended."""
        self._spent += self._clock() - self._began
        self._done += self._weights[name]
        self._count(name)

    def skip(self, name):
        """Counts a run that will not be."""
        self._number += 1
        self._count(name)

    def _count(self, name):
        self._left -= self._weights[name]
        self._show(1)

    def _show(self, ended):
        self._bar.set_postfix_str(f"about {format_seconds(self.seconds_left())} left", refresh=False)
        self._bar.update(ended)
        self._bar.refresh()

    def _say(self, text):
        print(text, file=sys.stderr, flush=True)


def autotune_flags(log):
    """-> flags of `train`: search, and write the log."""
    return ("--autotune", f"--autotune_log={log}")


def autotune_pace():
    """-> (name, value) of the environment variables of the search's pace; what the user has set stays."""
    return tuple((name, os.environ.get(name, value)) for name, value in _PACE.items())


@dataclasses.dataclass(frozen=True)
class Job:
    """One job: `workers` processes that train with the flags of `train`, on --train_data or, without it, on W1.

    Attributes:
      name: what the report calls it.
      workers: 1 runs without horovodrun.
      flags: of `train`, as "--batch_size=512".
      steps, warmup: steps that count, and those before them that do not.
      core_shares: into how many equal parts the cores of a machine are divided, of which each worker gets one; 0 for as
        many as it has workers.
      environment: (name, value) of more variables.
      launcher: what stands before `python`, for workers on several machines; () for horovodrun on this one.
    """

    name: str
    workers: int
    flags: tuple[str, ...]
    steps: int
    warmup: int
    core_shares: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    launcher: tuple[str, ...] = ()

    def run(self, directory, timeout):
        """Runs the job to its end, in a new model directory that is removed afterwards.

        Args:
          directory: where the workers leave their results; made here, so it must not be there.
          timeout: seconds.

        Returns:
          list of the ranks' results, dicts as `worker.result` makes them, each with `job_seconds`, from the start of
          the job's processes to their end.

        Raises:
          UserError: it failed, with its last lines; or there is no horovodrun.
        """
        directory = pathlib.Path(directory).resolve()
        directory.mkdir(parents=True)
        flags = [*self.flags, f"--model_dir={directory / 'model'}", f"--result_dir={directory}"]
        flags += [f"--max_steps={self.warmup + self.steps}", "--epochs=0", f"--phase_steps={self.warmup}"]
        flags += [f"--core_shares={self.core_shares}", "--save_checkpoints_steps=0", "--summary_steps=0"]
        start = time.perf_counter()
        try:
            child.run_command(
                [*self._launcher(), sys.executable, *_WORKER, *flags],
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
            raise UserError(f"the job {self.name!r} ended without an error, and left no {', '.join(missing)}")
        return [{**json.loads(file.read_text()), "job_seconds": seconds} for file in files]

    def _launcher(self):
        if self.launcher or self.workers == 1:
            return self.launcher
        require_horovodrun()
        return ("horovodrun", "-np", str(self.workers), "--gloo")


def environment(workers):
    """-> the environment of a job: this interpreter first, the cores shared out as threads, TensorFlow quiet.

    Args:
      workers: of this machine.
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


def require_horovodrun():
    """Raises UserError where there is no horovodrun."""
    if shutil.which("horovodrun", path=_path()) is None:
        raise UserError(
            "several workers are started by horovodrun, which is neither beside this Python nor on the PATH: build "
            "Horovod with `python -m ctr_trainer.installation.build_horovod`, or measure one: --workers=1"
        )


def run_rounds(jobs, rounds, directory, timeout, seed=None):
    """Runs all jobs in turn, `rounds` times, so that the machine's drift hits all alike. Shows `Progress`.

    A job that fails is not run again.

    Args:
      jobs: list of Jobs of different names.
      directory: made if need be; the ranks' results are in a new directory in it meanwhile.
      timeout: seconds that a run may take.
      seed: `--seed` of the first round, one more in each that follows: then the spread of what was learned is that of
        seeds; None leaves the jobs' own.

    Returns:
      (runs, failed): by name, a list of a list of the ranks' results a round; by name, what the error said.

    Raises:
      UserError: no job worked.
    """
    if any(job.workers > 1 and not job.launcher for job in jobs):
        require_horovodrun()
    runs, failed = {job.name: [] for job in jobs}, {}
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


def scratch(directory):
    """-> context manager of a new directory in `directory`, which is made if need be; it is removed in the end."""
    os.makedirs(directory, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="runs-", dir=directory)


def _path():
    return os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
