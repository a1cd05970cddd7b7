"""Training jobs that are run to be measured."""

import dataclasses
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

from ctr_trainer.bench.progress import Progress
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import child
from ctr_trainer.processes.hardware import usable_cores

_ROOT = str(pathlib.Path(__file__).resolve().parents[2])
_WORKER = ("-m", "ctr_trainer.bench.worker")


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
