"""Measures the lookup service alone: kernels, requests over loopback, the demo's traffic. The last line is JSON.

Rows have dim 16 with row-wise Adagrad (17 floats); keys are uniform or Zipf(1.2). Finds and gathers get the keys of a
batch; updates and requests get distinct keys, as a worker sends them. The service runs on its own core and the clients
run on the others. `*_per_core_sec` divides by the CPU time of the service, so it is also correct if the clients cannot
keep the service busy. The demo's traffic is measured with row-wise Adagrad (`workers_per_service_core`) and with the
demo's Adagrad, for one worker per host, and for two hosts with four workers each, which train one copy of the rows per
host (`workers_per_service_core_4_a_host`).

Example: python benchmarks/service.py                  # 1 M and 20 M rows: minutes, 6 GiB
         python benchmarks/service.py --rows=200000 --seconds=0.5
"""

import json
import os
import pathlib
import tempfile
import time
from collections.abc import Callable
from typing import Any

import loopback
import numpy as np
import sides
from loopback import BATCHES, CONFIG, DISTRIBUTIONS, draw, key_of, repeated

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.embedding.table.row_kernels import take
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.features.spec import FeatureSpec

SPEC = sides.ROOT / "configs" / "features" / "demo.toml"
OPTIMIZERS = ("rowwise_adagrad", "adagrad")
BATCH_KEYS = 26 * 1024
# The demo's traffic; half of the steps of each of the eight workers of two hosts are their warm-up.
DEMO_ROWS, WORKERS, HOSTS, WORKERS_A_HOST = 1_000_000, 4, 2, 4
WORKER_EXAMPLES_PER_SEC = 60_000


def rate(what: Callable[[np.ndarray], object], batches: list[np.ndarray], seconds: float) -> float:
    """Returns the keys/s of calling `what` with the batches in turn for `seconds`, after one call with each batch."""
    for batch in batches:
        what(batch)
    start = time.perf_counter()
    return repeated(what, batches, seconds) / (time.perf_counter() - start)


def in_process(rows: int, seconds: float) -> tuple[float, dict[str, dict[str, float]]]:
    """Returns the index bytes per row of a table on one core, and its rates by distribution."""
    table = Table(CONFIG)
    for keys in loopback.blocks(rows):
        table.find_or_create(keys)
    gathered = np.empty((BATCH_KEYS, CONFIG.width), np.float32)
    gradient = np.full((BATCH_KEYS, CONFIG.dims[0]), 1e-3, np.float32)

    def gather(slots: np.ndarray) -> None:
        take(table.stored, slots, 0, gathered)

    def update(slots: np.ndarray) -> None:
        table.apply_gradients(slots, [gradient[: len(slots)]], 0.01)

    results = {}
    for distribution in DISTRIBUTIONS:
        rng = np.random.default_rng(1)
        batches = [key_of(draw(rng, distribution, rows, BATCH_KEYS)) for _ in range(BATCHES)]
        slots = [table.find(keys) for keys in batches]
        results[distribution] = {
            "find_rows_per_sec": rate(table.find, batches, seconds),
            "gather_rows_per_sec": rate(gather, slots, seconds),
            "find_gather_rows_per_sec": rate(lambda keys: gather(table.find(keys)), batches, seconds),
            "update_rows_per_sec": rate(update, [rng.permutation(np.unique(part)) for part in slots], seconds),
        }
    return (table.nbytes - rows * CONFIG.width * 4) / rows, results


def main() -> None:
    parser = sides.parser(__doc__)
    rows_help = "resident rows, such as 1000,2000; the last counts"
    parser.add_argument("--rows", type=sides.integers, default=[10**6, 2 * 10**7], help=rows_help)
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds for each rate")
    flags = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    cases: dict[str, dict[str, float]] = {}
    for rows in flags.rows:
        os.sched_setaffinity(0, cores[:1])
        index_bytes, local = in_process(rows, flags.seconds)
        os.sched_setaffinity(0, cores[1:] or cores)
        with tempfile.TemporaryDirectory() as directory:
            index_bytes_there, remote = loopback.measure(rows, flags.seconds, directory, cores[0])
        for distribution in DISTRIBUTIONS:
            case = local[distribution] | remote[distribution] | {"table_bytes_per_row": CONFIG.width * 4 + index_bytes}
            cases[f"{distribution}_{rows}"] = {name: round(value, 3) for name, value in case.items()}
            print(f"{rows:,} rows, {distribution}:", json.dumps(cases[f"{distribution}_{rows}"], indent=4), flush=True)
        cases[f"zipf_{rows}"]["index_bytes_per_row"] = round(index_bytes_there, 2)
    demo: dict[str, dict[str, float]] = {name: {} for name in OPTIMIZERS}
    with tempfile.TemporaryDirectory() as directory:
        data = pathlib.Path(directory, "data")
        convert("synthetic", None, data, FeatureSpec.load(SPEC), rows=DEMO_ROWS, seed=1, progress=False)
        for optimizer in OPTIMIZERS:
            for sync_steps in (1, 30):
                demo[optimizer] |= loopback.traffic(data / "train", cores[0], optimizer, sync_steps, WORKERS)
        workers = HOSTS * WORKERS_A_HOST
        of_hosts = loopback.traffic(data / "train", cores[0], OPTIMIZERS[0], 30, workers, WORKERS_A_HOST)
    fed = {name: workers_fed(f"{WORKERS} workers, {name}", demo[name]) for name in OPTIMIZERS}
    fed_4_a_host = workers_fed(f"{HOSTS} hosts of {WORKERS_A_HOST} workers, {OPTIMIZERS[0]}", of_hosts)
    scored = cases[f"zipf_{flags.rows[-1]}"]
    names = ("find_gather_rows_per_sec", "update_rows_per_sec", "pull_rows_per_sec", "sync_rows_per_sec", "sync_p99_ms")
    result: dict[str, Any] = {name: scored[name] for name in (*names, "index_bytes_per_row")}
    result |= {"workers_per_service_core": fed["rowwise_adagrad"], "workers_per_service_core_adagrad": fed["adagrad"]}
    result |= {"workers_per_service_core_4_a_host": fed_4_a_host}
    print(json.dumps({**result, "cases": {**cases, "demo": demo, "demo_of_hosts": of_hosts}}))


def workers_fed(title: str, figures: dict[str, float]) -> float:
    """Prints the figures of the demo's data, and returns the number of workers that one core serves at N = 30."""
    print(f"the demo's data, {title}:", json.dumps(figures, indent=4))
    per_million = figures["core_sec_per_million_examples_sync_30"]
    fed = round(1e6 / per_million / WORKER_EXAMPLES_PER_SEC, 2)
    of = f"1,000,000 examples / {per_million:.3f} core-seconds / {WORKER_EXAMPLES_PER_SEC:,} examples/s = {fed:.1f}"
    print(f"workers a service core feeds at N = 30, {title}: {of}")
    return fed


if __name__ == "__main__":
    main()
