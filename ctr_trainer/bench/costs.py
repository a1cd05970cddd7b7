"""The costs of the parts of a training step, which `bench simulate` measures and computes with."""

import concurrent.futures
import dataclasses
import json
import math
import os
import pathlib
import shutil
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from ctr_trainer.bench.jobs import Job, environment, require_horovodrun
from ctr_trainer.system.messages.errors import UserError
from ctr_trainer.system.processes import child
from ctr_trainer.system.processes.hardware import usable_cores

GRAPH_PHASES = ("forward", "loss", "backward", "dense_update")
# The most cores with which two workers per core are measured, which needs twice as many workers as cores.
_MOST_CROWDED = 4
_ONE_MACHINE = "--embedding_service=auto"


@dataclasses.dataclass(frozen=True)
class Costs:
    """Measured costs. Unless stated otherwise, seconds are CPU seconds of a core that runs nothing else.

    Attributes:
      batch_size: examples of a step.
      step_seconds: the dense graph of one step: forward, backward, update.
      host_seconds: the rest of a step of a lone worker: reading, lookup, gathering and the update of the rows.
      deviation_seconds: the standard deviation of the wall time of a lone worker's step.
      lock_seconds: the part of `host_seconds` in which a worker holds the lock of shared rows.
      crowding: the slowdown of a core while all `cores` are busy; at least 1.
      sharing: the slowdown of two workers that take turns on a core, beyond the time of both; at least 1.
      cores: number of cores of the machine that was measured.
      rows: distinct rows that a batch looks up.
      growth: h of D(n) = rows n^h, the distinct rows of n batches (Heaps' law); 0 to 1.
      row_bytes: bytes of a row's weights and of its optimizer state.
      push_seconds: time of the worker for one row of a sync.
      request_seconds: time of the worker for one request to a shard.
      shard_push_seconds: time of the service to sync one row.
      shard_pull_seconds: time of the service to pull one row.
      shard_request_seconds: time of a shard for one request.
      dense_bytes: bytes of the dense gradient of a step.
      state_bytes: bytes of the dense variables and their optimizer state, which `--dense_sync_steps` averages.
      hop_seconds: wall time; an allreduce of one float between W workers takes 2 (W - 1) hops.
      crowded_hop_seconds: wall time of a hop with twice as many workers as cores.
      link_bytes_per_sec: speed at which a worker sends to another worker of its machine in an allreduce.
      exchange_seconds: CPU time of a worker for an allreduce of `dense_bytes`, between any machines.
      meeting_seconds: wall time of a sum of one float in the memory that the workers of a machine share.
      crowded_meeting_seconds: wall time of such a sum with twice as many workers as cores.
      memory_bytes_per_sec: speed of such a sum of many floats: bytes of one worker per second, wall and CPU.
    """

    batch_size: int
    step_seconds: float
    host_seconds: float
    deviation_seconds: float
    lock_seconds: float
    crowding: float
    sharing: float
    cores: int
    rows: float
    growth: float
    row_bytes: int
    push_seconds: float
    request_seconds: float
    shard_push_seconds: float
    shard_pull_seconds: float
    shard_request_seconds: float
    dense_bytes: int
    state_bytes: int
    hop_seconds: float
    crowded_hop_seconds: float
    link_bytes_per_sec: float
    exchange_seconds: float
    meeting_seconds: float
    crowded_meeting_seconds: float
    memory_bytes_per_sec: float

    def distinct(self, batches: float) -> float:
        """Returns D(n) = rows n^h, the distinct rows of n batches; 0 if n is not positive."""
        return self.rows * batches**self.growth if batches > 0 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Returns the attributes, for JSON."""
        return dataclasses.asdict(self)


# These costs must be above 0; all others may be 0.
_POSITIVE = ("batch_size", "step_seconds", "cores", "rows", "link_bytes_per_sec", "memory_bytes_per_sec")


def read_costs(path: str | os.PathLike[str]) -> Costs:
    """Reads costs from a JSON file: the object under the key `costs`, as `bench simulate` writes it, or the whole file.

    Raises:
      UserError: there is no such file, it is not JSON, or a cost is missing, unknown or not a valid number.
    """
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError) as error:
        raise UserError(f"--costs={path}: {error}; `bench simulate` without --costs measures and writes one") from None
    if isinstance(found, dict) and isinstance(found.get("costs"), dict):
        found = found["costs"]
    if not isinstance(found, dict):
        raise UserError(f"--costs={path}: expected one JSON object, not {type(found).__name__}")
    names = [field.name for field in dataclasses.fields(Costs)]
    for what, wrong in (
        ("lacks", [name for name in names if name not in found]),
        ("has the unknown", [name for name in found if name not in names]),
    ):
        if wrong:
            raise UserError(f"--costs={path} {what} {', '.join(wrong)}; the costs are {', '.join(names)}")
    for name, value in found.items():
        least = 1 if name in ("crowding", "sharing") else 0
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or value < least or (name in _POSITIVE and value == 0):
            above = "above 0" if name in _POSITIVE else f"at least {least}"
            raise UserError(f"--costs={path}: {name} is {value!r}, expected a number {above}")
    if found["growth"] > 1:
        raise UserError(f"--costs={path}: growth is {found['growth']}, expected at most 1")
    return Costs(**found)


def measure_costs(
    flags: Sequence[str],
    batch_size: int,
    optimizer: str,
    steps: int,
    warmup: int,
    directory: str | os.PathLike[str],
    timeout: float,
) -> Costs:
    """Measures the costs of a job.

    It runs a lone worker on one core, then one and two workers on each core at the same time, a service, and
    allreduces.

    Args:
      flags: flags of `train` of the job.
      batch_size: examples of a step with these flags.
      optimizer: name of the optimizer of the rows with these flags.
      steps: number of steps that each worker measures.
      warmup: number of steps before the measured ones.
      directory: directory for temporary files.
      timeout: longest time of each run, in seconds.

    Raises:
      UserError: there is no horovodrun or no taskset, or a run fails.
    """
    from ctr_trainer.bench import service_costs  # Importing it takes seconds, as it imports Numba.

    require_horovodrun()
    if shutil.which("taskset") is None:
        raise UserError("the costs of a core are measured by taskset, which is not on the PATH: install util-linux")
    cores = sorted(os.sched_getaffinity(0))
    directory = pathlib.Path(directory)
    alone = [lone_worker(flags, core, steps, warmup, f"core{core}") for core in cores]
    first = alone[0].run(directory / "alone", timeout)[0]["phases"]
    together = _at_once(alone, directory, timeout)
    shared = 2 * together
    if len(cores) <= _MOST_CROWDED:
        shared = _at_once(
            [dataclasses.replace(job, name=f"{job.name}-{i}") for job in alone for i in range(2)], directory, timeout
        )
    pair = _probe(flags, 2, directory, timeout)
    crowd = _probe(flags, 2 * len(cores), directory, timeout) if 1 < len(cores) <= _MOST_CROWDED else pair
    seconds = first["seconds"]
    graph = sum(seconds.get(phase, 0.0) for phase in GRAPH_PHASES)
    hop = pair["small_seconds"] / 2
    link = pair["dense_bytes"] / max(pair["dense_seconds"] - pair["small_seconds"], 1e-9)
    slowdown = together / first["step_seconds"]
    return Costs(
        batch_size=batch_size,
        step_seconds=graph,
        host_seconds=first["step_seconds"] - graph,
        deviation_seconds=first["step_deviation"],
        lock_seconds=service_costs.lock_seconds(pair["dims"], optimizer, pair["rows"]),
        crowding=max(slowdown, 1.0),
        sharing=max(shared / (2 * together), 1.0),
        cores=usable_cores(),
        rows=pair["rows"],
        growth=pair["growth"],
        row_bytes=pair["row_bytes"],
        **service_costs.measure(pair["dims"], optimizer, str(directory)),
        dense_bytes=pair["dense_bytes"],
        state_bytes=pair["state_bytes"],
        hop_seconds=hop,
        crowded_hop_seconds=crowd["small_seconds"] / (2 * (crowd["workers"] - 1)),
        link_bytes_per_sec=link,
        exchange_seconds=pair["dense_cpu_seconds"],
        meeting_seconds=pair["memory_small_seconds"],
        crowded_meeting_seconds=crowd["memory_small_seconds"],
        memory_bytes_per_sec=pair["dense_bytes"]
        / max(pair["memory_dense_seconds"] - pair["memory_small_seconds"], 1e-9),
    )


def _at_once(jobs: Sequence[Job], directory: pathlib.Path, timeout: float) -> float:
    """Runs jobs of one worker each at the same time, and returns the mean seconds of a step."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as threads:
        futures = [threads.submit(job.run, directory / job.name, timeout) for job in jobs]
        return statistics.fmean(future.result()[0]["phases"]["step_seconds"] for future in futures)


def lone_worker(flags: Sequence[str], core: int, steps: int, warmup: int, name: str) -> Job:
    """Returns a job of one worker that runs on one core."""
    return Job(
        name=name,
        workers=1,
        flags=(*flags, _ONE_MACHINE),
        steps=steps,
        warmup=warmup,
        environment=(("CTR_TRAINER_THREADS", "1"), ("OMP_NUM_THREADS", "1")),
        launcher=("taskset", "-c", str(core)),
    )


def _probe(flags: Sequence[str], workers: int, directory: pathlib.Path, timeout: float) -> dict[str, Any]:
    """Returns the dict that `probe` writes, with `workers` added."""
    result = directory / f"probe{workers}.json"
    own = ("--embedding_service=shared", "--model_dir=unused", f"--result={result}")
    launcher = ["horovodrun", "-np", workers, "--gloo", sys.executable, "-m", "ctr_trainer.bench.probe"]
    child.run_command(
        [*launcher, *flags, *own, "--epochs=0", "--save_checkpoints_steps=0", "--summary_steps=0"],
        f"the allreduce of {workers} workers",
        timeout,
        env=environment(workers),
        merge_stderr=True,
    )
    return {**json.loads(result.read_text()), "workers": workers}
