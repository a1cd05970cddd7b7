"""Measures the gain of a second worker, and the cost of a step in addition to its dense tower, on workload W1.

W2 is W1 with hidden layers of 400, 400 and 400 units.

The last line is JSON.

Every worker has one thread on its own core; a service may use all cores. All sides run in turn, and a ratio is the
median of the ratios by round. On a processor without instructions for bfloat16, the sides with it are left out, and
their values are null.

Example: python benchmarks/scaling.py --rounds 5
"""

import concurrent.futures
import contextlib
import functools
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import auc_changes
import jobs
import psutil
import sides
import worker as w1

from ctr_trainer.embedding.service.local_service import LocalServices
from ctr_trainer.system.processes import hardware

FIRST_STEP_RUNS, WARMUP_STEPS, BATCH_SIZE, RSS_STEPS = 3, 20, 1024, 1000
ONE_THREAD = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "CTR_TRAINER_THREADS": "1"}
W1_FLAGS = (
    *("--model=deepfm", f"--hidden_units={','.join(map(str, w1.HIDDEN_UNITS))}", f"--embedding_stddev={w1.STDDEV}"),
    *("--optimizer=adagrad", f"--learning_rate={w1.LEARNING_RATE}"),
    *("--embedding_optimizer=adagrad", f"--embedding_learning_rate={w1.LEARNING_RATE}"),
    *(f"--embedding_optimizer_params=initial_accumulator={w1.INITIAL_ACCUMULATOR}", "--sync_steps=30", "--threads=1"),
)
SHARED, AVERAGED = "--embedding_service=shared", "--dense_sync_steps=30"
BFLOAT16, W2_UNITS = "--mixed_precision=bfloat16", "--hidden_units=400,400,400"
# The sides and the description of each ratio, by its key in the last line.
RATIOS = {
    "one_worker_vs_in_graph": ("one", "in_graph", "one worker over TensorFlow's in-graph variables, float32"),
    "one_worker_bfloat16_vs_in_graph": ("one_bf16", "in_graph", f"the same with {BFLOAT16}"),
    "two_workers_periodic": ("two_shared", "one", "two workers over one: shared rows, dense averaged every 30 steps"),
    "two_workers_periodic_service": ("two_service", "one", "the same with a service, synced every 30 steps"),
    "two_workers_every_step": ("two_shared_each", "one", "shared rows, dense gradients reduced every step"),
    "two_workers_every_step_service": ("two_service_each", "one", "the same with a service"),
    "two_jobs": ("two_jobs", "one", "two trainings that exchange nothing over one: the most that these cores allow"),
    "one_worker_with_service": ("one_service", "one", "a service on the other core, over none"),
    "demo_default_vs_shared": ("demo", "demo_shared", f"the demo's job of two workers over the same with {SHARED}"),
    "two_workers_vs_naive_horovod": ("two_shared", "two_naive", "over in-graph variables under Horovod"),
    "step_vs_dense_tower": ("tower", "one_2_cores", "time of a step over that of its dense tower, two cores"),
    "w2_bfloat16_vs_in_graph": ("w2_bf16", "w2_in_graph", f"W2, one worker with {BFLOAT16} over in-graph variables"),
    "w2_vs_in_graph": ("w2", "w2_in_graph", "the same in float32"),
    "bfloat16_vs_float32": ("one_bf16", "one", f"one worker with {BFLOAT16} over one without"),
}
OTHERS = {
    "w2_examples_per_sec": f"of W2 with {BFLOAT16}; in float32 on a processor without it",
    "bfloat16_auc_minus_float32": f"least mean over --seeds of the test AUC with {BFLOAT16} minus that without it",
    "seconds_to_first_step": "from the start of `python -m ctr_trainer train` to its first step, caches warm",
    "rss_growth_percent": "resident memory after --rss_steps steps, over that after 3,000",
}


def ours(
    steps: int, *flags: str, workers: int = 1, cores: Sequence[int] = (0,), service_core: int | None = None
) -> float:
    """Returns the examples/s of all workers together; a single worker may use a service on another core."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        if service_core is not None:
            (service,) = stack.enter_context(LocalServices(1, directory, timeout=60).running({service_core}))
            token = pathlib.Path(directory, "token")
            token.touch(0o600)
            token.write_text(service.token)
            flags += f"--embedding_service={service.address}", f"--token_file={token}"
        stack.enter_context(on_cores(cores))
        job = jobs.Job("ours", workers, (*W1_FLAGS, *flags), steps, WARMUP_STEPS, environment=(*ONE_THREAD.items(),))
        return jobs.rate(job.run_in(pathlib.Path(directory)))


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Restricts processes that start within the block to the given cores."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def two_jobs(steps: int) -> float:
    """Returns the examples/s of two trainings of one worker, which run at the same time on two cores."""
    with concurrent.futures.ThreadPoolExecutor(2) as threads:  # A thread's cores are those of what it starts.
        alone = functools.partial(ours, steps, "--prefetch_batches=0")
        return sum(threads.map(lambda core: alone(cores=[core]), (0, 1)))


def reference(kind: str, steps: int, *flags: str, workers: int = 1) -> float:
    """Returns the examples/s of all workers of `w1.py` together."""
    program = ["w1.py", kind, f"--steps={steps}", *flags]
    return jobs.rate(jobs.run_workers(jobs.horovodrun(workers), workers, program, ONE_THREAD))


def every_side(steps: int) -> dict[str, Callable[[], float]]:
    """Returns the functions that measure the sides, by side."""
    alone = functools.partial(ours, steps)
    two = functools.partial(ours, steps, workers=2, cores=(0, 1))
    return {
        "one": functools.partial(alone, "--prefetch_batches=0"),
        "one_service": functools.partial(alone, "--prefetch_batches=4", service_core=1),
        "one_bf16": functools.partial(alone, "--prefetch_batches=0", BFLOAT16),
        "in_graph": functools.partial(reference, "in_graph", steps),
        "tower": functools.partial(reference, "tower", steps),
        "w2": functools.partial(alone, "--prefetch_batches=0", W2_UNITS),
        "w2_bf16": functools.partial(alone, "--prefetch_batches=0", W2_UNITS, BFLOAT16),
        "w2_in_graph": functools.partial(reference, "in_graph", steps, W2_UNITS),
        "one_2_cores": functools.partial(ours, steps, "--prefetch_batches=4", cores=(0, 1)),
        "two_shared": functools.partial(two, "--prefetch_batches=0", SHARED, AVERAGED),
        "two_service": functools.partial(two, "--prefetch_batches=0", AVERAGED),
        "two_shared_each": functools.partial(two, "--prefetch_batches=0", SHARED),
        "two_service_each": functools.partial(two, "--prefetch_batches=4"),
        "two_jobs": functools.partial(two_jobs, steps),
        "two_naive": functools.partial(reference, "in_graph", steps, workers=2),
    }


def runnable(every: dict[str, Callable[[], float]]) -> dict[str, Callable[[], float]]:
    """Returns the sides that this processor can run, and prints which are left out."""
    if hardware.has_bfloat16():
        return every
    print("left out: bfloat16, since this processor has no instructions for it (AVX-512 BF16 or AMX)")
    return {name: side for name, side in every.items() if not name.endswith("_bf16")}


def demo(flags: Sequence[str], data: pathlib.Path) -> float:
    """Returns the examples/s of the demo with two workers."""
    job = ("horovodrun", "-np", "2", "--gloo", sides.ROOT / "run.sh", sides.DEMO)
    return sides.trained([*job, f"--train_data={data}/train", "--eval_data=", *flags])["examples_per_sec"]


def logged_steps(command: Sequence[object]) -> Iterator[tuple[int, float, int]]:
    """Runs a training; yields each step in its log with the seconds since the start and the resident bytes."""
    start = time.perf_counter()
    with sides.started(command, ONE_THREAD, stderr=subprocess.PIPE, text=True) as job:
        for text in job.stderr or ():
            if found := re.search(r"step (\d+), ", text):
                yield int(found[1]), time.perf_counter() - start, psutil.Process(job.pid).memory_info().rss
        if job.wait():
            raise SystemExit(f"{' '.join(map(str, command))} ended with {job.returncode}")


def seconds_to_first_step(data: pathlib.Path) -> float:
    """Returns the median time in seconds from the start of a training command to the log line of its first step."""
    seconds = []
    for _ in range(FIRST_STEP_RUNS):
        with tempfile.TemporaryDirectory() as model_dir:
            flags = ["--max_steps=2", "--recipe=none", "--log_steps=1", f"--model_dir={model_dir}"]
            steps = [*logged_steps([*sides.COMMAND, "train", f"--train_data={data}/train", *flags])]
        seconds.append(steps[0][1])
    return round(statistics.median(seconds), 2)


def rss_growth_percent(steps: int) -> float | None:
    """Returns by how many percent the resident memory of a W1 training grows after step 3,000; None for few steps."""
    if steps < 4 * RSS_STEPS:
        return None
    with tempfile.TemporaryDirectory() as directory, on_cores([0]):
        flags = [*W1_FLAGS, f"--max_steps={steps}", "--epochs=0", f"--log_steps={RSS_STEPS}", "--batch_size=64"]
        places = f"--model_dir={directory}/model", f"--result_dir={directory}", "--profile_steps=10,20"
        job = [sys.executable, sides.HERE / "worker.py", "--prefetch_batches=4", *flags, *places]
        held = [size for step, _, size in logged_steps(job) if step >= 3 * RSS_STEPS]
    return round(100 * (held[-1] / held[0] - 1), 2)


def bfloat16_auc(seeds: Sequence[int]) -> float | None:
    """Returns `bfloat16_auc_minus_float32`, of DeepFM and DCN-v2; None without seeds or on a processor without it."""
    if not seeds or not hardware.has_bfloat16():
        return None
    changes = auc_changes.auc_changes([BFLOAT16], seeds, ("deepfm", "dcn_v2"))
    print(json.dumps({"bfloat16_auc_changes": changes}), flush=True)
    return min(auc_changes.means(changes).values())


def main() -> None:
    keys = {key: about for key, (_, _, about) in RATIOS.items()} | OTHERS
    parser = sides.parser("\n".join([str(__doc__), *(f"    {key:<32} {about}" for key, about in keys.items())]))
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all sides, in turn")
    parser.add_argument("--steps", type=int, default=300, help="steps measured in each run, after 20 others")
    parser.add_argument("--rss_steps", type=int, default=20_000, help="steps for rss_growth_percent; null below 4,000")
    parser.add_argument("--seeds", type=sides.integers, default=[], help="for bfloat16_auc_minus_float32, such as 1,2")
    flags = parser.parse_args()
    every = every_side(flags.steps)
    every["one"]()  # Compiles the kernels and warms the file cache.
    rates = sides.in_turn(runnable(every), flags.rounds)
    growth = rss_growth_percent(flags.rss_steps)
    with tempfile.TemporaryDirectory() as directory:
        data = pathlib.Path(directory, "demo")
        sides.make_synthetic(data)
        first = seconds_to_first_step(data)
        demos = {"demo": functools.partial(demo, [], data), "demo_shared": functools.partial(demo, [SHARED], data)}
        rates |= sides.in_turn(demos, min(flags.rounds, 3))
    medians = {name: round(statistics.median(of)) for name, of in rates.items()}
    results: dict[str, Any] = {key: sides.ratio(rates, one, other) for key, (one, other, _) in RATIOS.items()}
    results |= {"w2_examples_per_sec": medians.get("w2_bf16", medians["w2"])}
    results |= {"bfloat16_auc_minus_float32": bfloat16_auc(flags.seeds)}
    results |= {"seconds_to_first_step": first, "rss_growth_percent": growth}
    results["examples_per_sec"] = {name: medians.get(name) for name in (*every, *demos)}
    print(json.dumps(results | {"rounds": flags.rounds}))


if __name__ == "__main__":
    main()
