"""Measures what a second worker gains, and what a step costs next to its dense tower, on workload W1.

The last line is JSON.

Every worker has one thread on a core of its own; a service may use all cores. All sides run in turn. On a processor
without instructions for bfloat16 the side `one_bf16` is left out, and its keys are null.

    one_worker_vs_in_graph          one worker over TensorFlow's in-graph variables, one core each, float32
    one_worker_bfloat16_vs_in_graph the same with --mixed_precision=bfloat16
    two_workers_periodic            two workers over one: rows shared in memory, dense variables averaged every 30 steps
    two_workers_periodic_service    the same with an embedding service, which the host syncs with every 30 steps
    two_workers_every_step          two workers over one: rows shared in memory, dense gradients reduced every step
    two_workers_every_step_service  the same with an embedding service
    one_worker_with_service         one worker on a core with a service on the other, over one worker without
    demo_default_vs_shared          the demo's job by its default flags over the same with --embedding_service=shared
    two_workers_vs_naive_horovod    two_workers_periodic over two workers of in-graph variables under Horovod
    step_vs_dense_tower             time of a step, with a second core free, over the time of its dense tower; rows are
                                    looked up and trained while steps run (--overlap_lookup)
    step_vs_dense_tower_in_turn     the same without
    bfloat16_vs_float32             one worker with --mixed_precision=bfloat16 over one without
    seconds_to_first_step           from the start of `python -m ctr_trainer train` to its first step, caches warm
    rss_growth_percent              resident memory after --rss_steps steps, over that after 2,000

Example: python benchmarks/scaling.py --rounds 5
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

from sides import COMMAND, ROOT, Side, call, compare, environment, ratio, runnable, summary

from ctr_trainer.system.processes import hardware

FIRST_STEP_RUNS = 3


def sides(steps: int) -> dict[str, Side]:
    alone, two = (f"--steps={steps}", "--cores=0"), (f"--steps={steps}", "--cores=0,1")
    shared, averaged = "--embedding_service=shared", "--dense_sync_steps=30"
    return {
        "one": Side(("ours", *alone)),
        "one_service": Side(("ours", *alone, "--service_core=1", "--prefetch_batches=4")),
        "one_bf16": Side(("ours", *alone, "--mixed_precision=bfloat16"), needs_bfloat16=True),
        "in_graph": Side(("in_graph", *alone)),
        "tower": Side(("tower", *alone)),
        "one_2_cores": Side(("ours", *two, "--prefetch_batches=4", "--overlap_lookup")),
        "one_2_cores_in_turn": Side(("ours", *two, "--prefetch_batches=4")),
        "two_shared": Side(("ours", *two, shared, averaged), workers=2),
        "two_service": Side(("ours", *two, averaged), workers=2),
        "two_shared_each": Side(("ours", *two, shared), workers=2),
        "two_service_each": Side(("ours", *two, "--prefetch_batches=4"), workers=2),
        "two_naive": Side(("in_graph", *two), workers=2),
    }


def demo_rates(directory: str, rounds: int) -> tuple[float, dict[str, int]]:
    """Trains the demo's job of two workers by its default flags and with `--embedding_service=shared`, in turn.

    Returns:
      (median over the rounds of the ratio of the examples/s, median examples/s by name).
    """
    data = pathlib.Path(directory, "demo")
    call([*COMMAND, "convert", "--format=synthetic", f"--output={data}"])
    job = ("horovodrun", "-np", "2", "--gloo", ROOT / "run.sh", f"--flagfile={ROOT}/configs/demo.flags")
    sides: dict[str, tuple[str, ...]] = {"demo": (), "demo_shared": ("--embedding_service=shared",)}
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name, flags in sides.items():
            model = pathlib.Path(directory, f"{name}{number}")
            call([*job, f"--train_data={data}/train", "--eval_data=", f"--model_dir={model}", *flags])
            rates[name].append(summary(model)["examples_per_sec"])
    ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
    return round(statistics.median(ratios), 3), {name: round(statistics.median(each)) for name, each in rates.items()}


def seconds_to_first_step(directory: str) -> float:
    """Returns the median of the seconds from the start of a training command to the log line of its first step."""
    data = f"{directory}/data"
    call([*COMMAND, "convert", "--format=synthetic", "--rows=50000", f"--output={data}"])
    seconds = []
    for number in range(FIRST_STEP_RUNS):
        flags = [
            f"--train_data={data}/train",
            f"--model_dir={directory}/model{number}",
            "--max_steps=2",
            "--recipe=none",
            "--log_steps=1",
        ]
        start = time.perf_counter()
        with subprocess.Popen([*COMMAND, "train", *flags], env=environment(), stderr=subprocess.PIPE, text=True) as job:
            first = None
            for line in job.stderr:
                if first is None and "step 1, " in line:
                    first = time.perf_counter() - start
        if job.returncode or first is None:
            raise SystemExit(f"{' '.join(flags)} ended with {job.returncode} before its first step")
        seconds.append(first)
    return round(statistics.median(seconds), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds of all sides, in turn")
    parser.add_argument("--steps", type=int, default=300, help="steps measured in each run, after 20 others")
    parser.add_argument("--rss_steps", type=int, default=20_000, help="steps for rss_growth_percent; null below 4,000")
    parser.add_argument("--cpuinfo", default="/proc/cpuinfo", help="file that names the processor's instructions")
    flags = parser.parse_args()
    every = sides(flags.steps)
    chosen = runnable(every, hardware.has_bfloat16(flags.cpuinfo))
    chosen["one"].run()  # compiles the kernels and warms the file cache
    rates = compare(chosen, flags.rounds)
    small = ("--batch_size=64", f"--steps={flags.rss_steps}", "--cores=0", "--prefetch_batches=4")
    (memory,) = Side(("ours", *small)).run()
    growth = memory.get("rss_growth_percent")
    with tempfile.TemporaryDirectory() as directory:
        first = seconds_to_first_step(directory)
        demo, rates_of_demo = demo_rates(directory, min(flags.rounds, 3))
    results = {
        "one_worker_vs_in_graph": ratio(rates, "one", "in_graph"),
        "one_worker_bfloat16_vs_in_graph": ratio(rates, "one_bf16", "in_graph"),
        "two_workers_periodic": ratio(rates, "two_shared", "one"),
        "two_workers_periodic_service": ratio(rates, "two_service", "one"),
        "two_workers_every_step": ratio(rates, "two_shared_each", "one"),
        "two_workers_every_step_service": ratio(rates, "two_service_each", "one"),
        "one_worker_with_service": ratio(rates, "one_service", "one"),
        "demo_default_vs_shared": demo,
        "two_workers_vs_naive_horovod": ratio(rates, "two_shared", "two_naive"),
        "step_vs_dense_tower": ratio(rates, "tower", "one_2_cores"),
        "step_vs_dense_tower_in_turn": ratio(rates, "tower", "one_2_cores_in_turn"),
        "bfloat16_vs_float32": ratio(rates, "one_bf16", "one"),
        "seconds_to_first_step": first,
        "rss_growth_percent": None if growth is None else round(growth, 2),
        "examples_per_sec": {name: round(statistics.median(rates[name])) if name in rates else None for name in every}
        | rates_of_demo,
        "rounds": flags.rounds,
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
