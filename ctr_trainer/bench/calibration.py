"""Measures `Costs` on this machine."""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from ctr_trainer.bench.costs import Costs
from ctr_trainer.bench.jobs import Job, environment, require_horovodrun
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import child
from ctr_trainer.processes.hardware import usable_cores

GRAPH_PHASES = ("forward", "loss", "backward", "dense_update")
# With more cores, crowded cores are not measured, as that would take twice as many workers as cores.
_MOST_CROWDED = 4
_ONE_MACHINE = "--embedding_service=auto"


def measure(
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
      warmup: number of steps before them.
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
    """Returns what `probe` writes, and `workers`."""
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
