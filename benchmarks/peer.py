"""What every peer of `peers.py` has in common: equal batches from a file, the steps that count, its result.

A peer is a script of its own, which may run in another Python with its own packages, so this takes NumPy and no more.
"""

import argparse
import json
import os
import pathlib
import time

import numpy as np


def parse(text):
    """-> the arguments of a peer's command line.

    Args:
      text: of its help.
    """
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="directory that `write_batches` made")
    parser.add_argument("--result_dir", type=pathlib.Path, required=True, help="where rank r writes rank-r.json")
    parser.add_argument("--steps", type=int, required=True, help="that count")
    parser.add_argument("--warmup", type=int, required=True, help="steps before them")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rank", type=int, default=-1, help="of this worker; -1 where it starts the others")
    parser.add_argument("--port", type=int, default=0, help="where rank 0 listens for the others")
    return parser.parse_args()


def pin(rank, workers):
    """Keeps this process on the core of its rank, as far as there are so many, with one thread; before any library."""
    cores = sorted(os.sched_getaffinity(0))
    if workers <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"


def write_batches(directory, ids, dense, labels, rank, **sizes):
    """Writes a rank's batches: int64[N, B, F] row numbers, float32[N, B, n], float32[N, B]; and the model's sizes."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    np.savez(directory / f"rank-{rank}.npz", ids=ids, dense=dense, labels=labels)
    (directory / "sizes.json").write_text(json.dumps(sizes))


def read_batches(directory, rank):
    """-> ((ids, dense, labels), sizes) of `write_batches`."""
    with np.load(pathlib.Path(directory) / f"rank-{rank}.npz") as arrays:
        batches = tuple(arrays[name] for name in ("ids", "dense", "labels"))
    return batches, json.loads((pathlib.Path(directory) / "sizes.json").read_text())


def measure(arguments, rank, batch_size, step, version):
    """Runs the steps and writes the rank's result: `examples_per_sec` of this rank, and `version`.

    Args:
      arguments: of `parse`.
      rank: of this worker.
      batch_size: examples of a step.
      step: f(i) that trains on batch i and returns when that is done.
      version: what ran, as `torch 2.5.1`.
    """
    for i in range(arguments.warmup):
        step(i)
    start = time.perf_counter()
    for i in range(arguments.warmup, arguments.warmup + arguments.steps):
        step(i)
    seconds = time.perf_counter() - start
    found = {"rank": rank, "examples_per_sec": arguments.steps * batch_size / seconds, "version": version}
    (arguments.result_dir / f"rank-{rank}.json").write_text(json.dumps(found))
