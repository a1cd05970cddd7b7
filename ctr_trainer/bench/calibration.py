"""Measures `Costs` on this machine."""

import concurrent.futures
import dataclasses
import json
import os
import pathlib
import shutil
import statistics
import sys

from ctr_trainer.bench.costs import Costs
from ctr_trainer.bench.jobs import Job, environment, require_horovodrun
from ctr_trainer.messages.errors import UserError
from ctr_trainer.processes import child
from ctr_trainer.processes.hardware import usable_cores

GRAPH_PHASES = ("forward", "loss", "backward", "dense_update")
# Beyond this many cores, twice as many workers are too many to start for one figure.
_MOST_CROWDED = 4
_ONE_MACHINE = "--embedding_service=auto"


def measure(flags, batch_size, optimizer, steps, warmup, directory, timeout):
    """Runs a lone worker on one core, one and then two on every core at once, a service, and allreduces. -> `Costs`.

    Args:
      flags: of `train`: the job whose costs these are.
      batch_size, optimizer: of `flags`; the latter is the rows'.
      steps, warmup: of the workers.
      directory: for what it writes meanwhile.
      timeout: seconds for each run.

    Raises:
      UserError: there is no horovodrun or no taskset, or a run fails.
    """
    from ctr_trainer.bench import service_costs  # Which take Numba, and so seconds, to import.

    require_horovodrun()
    if shutil.which("taskset") is None:
        raise UserError("the costs of a core are measured by taskset, which is not on the PATH: install util-linux")
    cores = sorted(os.sched_getaffinity(0))
    directory = pathlib.Path(directory)
    first, *alone = [lone_worker(flags, core, steps, warmup, f"core{core}") for core in (cores[0], *cores)]
    first = first.run(directory / "alone", timeout)[0]["phases"]
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


def _at_once(jobs, directory, timeout):
    """-> the mean seconds of a step of jobs of one worker each, all running at once."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as threads:
        futures = [threads.submit(job.run, directory / job.name, timeout) for job in jobs]
        return statistics.fmean(future.result()[0]["phases"]["step_seconds"] for future in futures)


def lone_worker(flags, core, steps, warmup, name):
    """-> a Job of one worker that keeps to a core."""
    flags = (*flags, _ONE_MACHINE)
    pinned, threads = ("taskset", "-c", str(core)), (("CTR_TRAINER_THREADS", "1"), ("OMP_NUM_THREADS", "1"))
    return Job(name, 1, flags, steps, warmup, 0, threads, pinned)


def _probe(flags, workers, directory, timeout):
    """-> what `probe` writes, and `workers`."""
    result = directory / f"probe{workers}.json"
    flags = [*flags, "--embedding_service=shared", "--model_dir=unused", f"--result={result}"]
    launcher = ["horovodrun", "-np", workers, "--gloo", sys.executable, "-m", "ctr_trainer.bench.probe"]
    child.run_command(
        [*launcher, *flags, "--epochs=0", "--save_checkpoints_steps=0", "--summary_steps=0"],
        f"the allreduce of {workers} workers",
        timeout,
        env=environment(workers),
        merge_stderr=True,
    )
    return {**json.loads(result.read_text()), "workers": workers}
