"""The jobs that the tables measure: `worker.py` under horovodrun, with flags of `train`, in turn and by round.

Without --train_data, the workers train on W1, which is generated in memory; see `worker.py`.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import tempfile
import time
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import sides
from figures import Figure, figure

from ctr_trainer.commands.experiment import flags as experiment_flags
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes.hardware import usable_cores

# The results of a run by rank, see `worker.result`; the runs of a job by round; the rounds by job.
Ranks = list[dict[str, Any]]
Rounds = list[Ranks]
Runs = dict[str, Rounds]
_WAYS = ("received", "sent")


def run_workers(launcher: Sequence[object], workers: int, program: Sequence[object], more: dict[str, str]) -> Ranks:
    """Runs a program of this directory as each worker; returns what each rank wrote to rank-RANK.json in --result_dir.

    Each rank's results also have `job_seconds`, the time from the start of the processes to their end. `more` adds
    environment variables.
    """
    with tempfile.TemporaryDirectory() as directory:
        name, *flags = program
        command = [*launcher, sides.COMMAND[0], sides.HERE / str(name), *flags, f"--result_dir={directory}"]
        began = time.perf_counter()
        sides.call(command, more)
        seconds = time.perf_counter() - began
        files = [pathlib.Path(directory, f"rank-{rank}.json") for rank in range(workers)]
        return [{**json.loads(file.read_text()), "job_seconds": seconds} for file in files]


def horovodrun(workers: int) -> tuple[object, ...]:
    """Returns the command that starts a program as each of the workers; () for one worker."""
    return ("horovodrun", "-np", workers, "--gloo") if workers > 1 else ()


@dataclasses.dataclass(frozen=True)
class Job:
    """A job of `workers` processes that train with the flags of `train`, on --train_data or, without it, on W1.

    Attributes:
      name: the name in the report.
      steps, warmup: number of measured steps, and of steps before them.
      core_shares: number of equal parts into which the cores of a machine are divided; each worker gets one part. 0
        means one part per worker.
      towers: number of devices that one process drives.
      environment: (name, value) of additional environment variables.
    """

    name: str
    workers: int
    flags: tuple[str, ...]
    steps: int
    warmup: int
    core_shares: int = 0
    towers: int = 1
    environment: tuple[tuple[str, str], ...] = ()

    def launcher(self) -> tuple[object, ...]:
        """Returns the command that starts a program as each of the workers."""
        return horovodrun(self.workers)

    def run(self, *more: str) -> Ranks:
        """Runs the job to its end with `more` flags, in a model directory that is removed, and returns its results."""
        with tempfile.TemporaryDirectory() as directory:
            return self.run_in(pathlib.Path(directory), *more)

    def run_in(self, directory: pathlib.Path, *more: str) -> Ranks:
        """Runs the job with its model directory below `directory`."""
        flags = [*self.flags, *more, f"--model_dir={directory / 'model'}", f"--core_shares={self.core_shares}"]
        flags += [f"--towers={self.towers}", f"--max_steps={self.warmup + self.steps}", "--epochs=0"]
        flags += [f"--profile_steps={max(self.warmup - 4, 1)},{self.warmup}"]  # The steps after these are measured.
        flags += ["--save_checkpoints_steps=0", "--summary_steps=0"]
        threads = str(max(usable_cores() // (self.core_shares or self.workers), 1))
        own = dict.fromkeys(("CTR_TRAINER_THREADS", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
        return run_workers(self.launcher(), self.workers, ["worker.py", *flags], {**own, **dict(self.environment)})


def rate(ranks: Ranks) -> float:
    """Returns the examples/s of all ranks together."""
    return sum(rank["examples_per_sec"] for rank in ranks)


def experiment_of(flags: Sequence[str]) -> Experiment:
    """Returns the settings that flags of `train` select; a wrong flag ends the program."""
    try:
        return experiment_flags.parse(experiment_flags.TRAINING, flags)[0]
    except UserError as error:
        raise SystemExit(f"flags of train: {error}") from None


@dataclasses.dataclass(frozen=True)
class Setup:
    """What all jobs of a table have in common: the flags of `train`, and the rounds and steps of each job."""

    flags: tuple[str, ...]
    rounds: int
    steps: int
    data: str = ""

    @functools.cached_property
    def experiment(self) -> Experiment:
        return experiment_of(self.flags)

    @property
    def warmup(self) -> int:
        """The number of steps before those that are measured; the last of them are traced."""
        return max(2, min(20, self.steps // 3))

    @property
    def total_steps(self) -> int:
        return self.steps + self.warmup

    def factor(self, flags: Sequence[str]) -> float:
        """Returns how many times as many examples a step of a worker has with these flags in addition."""
        own, other = self.experiment, experiment_of([*self.flags, *flags])
        batches = other.train.accumulation_steps / own.train.accumulation_steps
        return batches * other.data.batch_size / own.data.batch_size

    def job(self, name: str, workers: int, flags: Sequence[str] = (), factor: float | None = None, **more: Any) -> Job:
        """Returns a job that trains on as many examples as one with the setup's flags and steps.

        `factor` is the number of examples of its step over those of a step by the setup's flags; the default is that of
        a worker. At least two steps warm up, so that one can be traced. `more` are further arguments of `Job`.
        """
        factor = factor or self.factor(flags)
        warmup = max(round(self.warmup / factor), 2)
        steps = max(round(self.total_steps / factor) - warmup, warmup)
        return Job(name=name, workers=workers, flags=(*self.flags, *flags), steps=steps, warmup=warmup, **more)

    def measure(self, jobs: Sequence[Job], with_seeds: bool = True) -> tuple[Runs, dict[str, str]]:
        """Runs all jobs in turn in each round; in each round with another --seed, unless `with_seeds` is false.

        Returns:
          (runs, failed): the results of each job that did not fail, and the errors of the others, both by name.
        """

        def run(job: Job, seeds: "itertools.count[int]") -> Ranks:
            return job.run(*([f"--seed={next(seeds)}"] if with_seeds else []))

        seed, failed = self.experiment.run.seed, dict[str, str]()
        measured = {job.name: functools.partial(run, job, itertools.count(seed)) for job in jobs}
        runs = sides.in_turn(measured, self.rounds, lambda ranks: f"{rate(ranks):,.0f}", failed)
        return {name: rounds for name, rounds in runs.items() if name not in failed}, failed

    def title(self, workers: int) -> str:
        """Describes the model, the data and the rounds."""
        return (
            f"{self.experiment.model.model} on {self.data}, at most {workers} workers, batches of "
            f"{self.experiment.data.batch_size}; median (range), rounds: {self.rounds}, all jobs in turn"
        )


def parser(description: str | None, rounds: int = 3, steps: int = 200, rows: int = 0) -> argparse.ArgumentParser:
    """Returns a parser with the flags of all tables; with `rows`, also with --rows, for `setup_with_data`."""
    found = sides.parser(description)
    found.add_argument("--rounds", type=int, default=rounds, help=f"rounds of all jobs in turn; default {rounds}")
    about = "steps measured per run, after a warm-up of 20 steps or a third as many"
    found.add_argument("--steps", type=int, default=steps, help=f"{about}; default {steps}")
    if rows:
        found.add_argument("--rows", type=int, default=rows, help=f"rows of the data that are made; default {rows:,}")
    found.add_argument("more", nargs="*", help="flags of `train` for all jobs, after a `--`: -- --batch_size=512")
    return found


def setup(flags: argparse.Namespace) -> Setup:
    """Returns the setup of jobs whose speed is measured, without evaluations."""
    data = experiment_of(flags.more).data.train_data or "W1 from memory (26 fields, 13 numbers, random labels)"
    return Setup((*flags.more, "--eval_data="), flags.rounds, max(flags.steps, 2), data)


def setup_with_data(flags: argparse.Namespace, directory: str) -> Setup:
    """Returns the setup of jobs whose AUC is compared, with data and with --deterministic.

    Identical jobs of several workers otherwise differ by chance, often by more than the settings that are compared. If
    the flags have no --train_data, `flags.rows` rows are generated below `directory`.
    """
    given = experiment_of(flags.more).data
    if bool(given.train_data) != bool(given.eval_data):
        raise SystemExit("speed and AUC need both --train_data and --eval_data; give neither to generate both")
    made, data = list[str](), given.train_data
    if not data:
        sides.make_synthetic(directory, f"--rows={flags.rows}")
        made, data = [f"--train_data={directory}/train", f"--eval_data={directory}/test"], "synthetic data"
    return Setup(("--deterministic", *flags.more, *made), flags.rounds, max(flags.steps, 2), data)


def figures_of(rounds: Rounds, alone: Rounds | None, batches: int = 1) -> dict[str, Any]:
    """Returns the figures of a job, whose steps have `batches` batches each; None for what was not measured.

    Returns:
      dict of
        `job_seconds`: time from the start of the job's processes to their end;
        `batch_ms`: time of a worker's step divided by the number of batches per step;
        `together`, `each`: examples/s of all workers, and of one;
        `efficiency`: `together` over the number of workers times the examples/s of one worker, `alone`, in each round;
        `phases_ms`: by phase, its time in a step; mean over the workers;
        `accounted`: share of the step that the phases add up to; minimum over the workers;
        `cpu`: number of cores that the processes of all workers used;
        `network`: by interface, the bytes/s `received` and `sent`, as counted on the machine of rank 0;
        `service_cpu`, `service_requests`: cores that the services used, and requests/s that they answered;
        `resident_bytes`, `service_resident_bytes`: the most memory that a worker used; that of all services at the end;
        `gpu_busy`, `gpu_bytes`: share of the time in which the GPUs were busy; the most memory in use on one of them.
    """
    workers = len(rounds[0])
    pairs = [*zip(rounds, alone, strict=True)] if alone else []
    phases = dict.fromkeys(name for ranks in rounds for rank in ranks for name in rank["phases"]["seconds"])
    loads, helds = [ranks[0]["load"] for ranks in rounds], [ranks[0]["held"] for ranks in rounds]
    services, gpus = [load.get("service", {}) for load in loads], [held["gpu"] for held in helds]
    interfaces = sorted({name for load in loads for name in load["network"]})

    def phase_ms(name: str) -> Figure | None:
        return figure(1000 * fmean(rank["phases"]["seconds"].get(name, 0.0) for rank in ranks) for ranks in rounds)

    return {
        "job_seconds": figure(ranks[0]["job_seconds"] for ranks in rounds),
        "batch_ms": figure(
            1000 * fmean(rank["phases"]["step_seconds"] for rank in ranks) / batches for ranks in rounds
        ),
        "together": figure(map(rate, rounds)),
        "each": figure(rate(ranks) / workers for ranks in rounds),
        "efficiency": figure(rate(ranks) / (workers * rate(one)) for ranks, one in pairs),
        "phases_ms": {name: phase_ms(name) for name in phases},
        "accounted": figure(min(rank["phases"]["accounted"] for rank in ranks) for ranks in rounds),
        "cpu": figure(sum(rank["load"]["cpu"] for rank in ranks) for ranks in rounds),
        "network": {
            name: {way: figure(load["network"].get(name, {}).get(way, 0.0) for load in loads) for way in _WAYS}
            for name in interfaces
        },
        "service_cpu": figure(service.get("cpu") for service in services),
        "service_requests": figure(service.get("requests") for service in services),
        "resident_bytes": figure(held["resident_bytes"]["max"] for held in helds),
        "service_resident_bytes": figure(held["service_resident_bytes"] for held in helds),
        "gpu_busy": figure(gpu and gpu["busy"]["mean"] for gpu in gpus),
        "gpu_bytes": figure(gpu and gpu["bytes"]["max"] for gpu in gpus),
    }
