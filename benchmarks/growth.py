"""The longest time that a request takes while a table grows to 100 million rows. Last line: JSON.

One thread sends a store of this process requests of 20,000 keys, all of them new, until the table has `--rows` rows. At
each quarter of them another thread saves a full snapshot and after it a delta, while the requests go on.

Example: python benchmarks/growth.py                      # 100 M rows: 2 minutes, 6 GiB of memory, 4 GB of disk
         python benchmarks/growth.py --rows=5000000 --limits    # of a table that counts, evicts and expires rows
"""

import argparse
import concurrent.futures
import dataclasses
import json
import tempfile
import time

import numpy as np
from tqdm import tqdm

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.settings.row_optimizer import RowAdagrad

CONFIG = TableConfig("bench", (1,), (0.01,), RowAdagrad(initial_accumulator=0.1))
REQUEST_KEYS = 20_000
QUARTERS = 4


def measure(rows, limits, directory):
    """-> (seconds of each request float64[n], whether a snapshot was under way bool[n])"""
    config = dataclasses.replace(CONFIG, max_rows=2 * rows, ttl_steps=2 * rows) if limits else CONFIG
    store, rng = LocalStore(), np.random.default_rng(1)
    store.create_table(config)
    deltas = np.full((REQUEST_KEYS, config.width), 1e-6, np.float32)
    seconds, saving, requests = [], [], rows // REQUEST_KEYS
    with concurrent.futures.ThreadPoolExecutor(1) as pool, tqdm(total=requests, unit=" requests", disable=None) as bar:
        snapshots = []
        for request in range(requests):
            if request % (requests // QUARTERS) == requests // QUARTERS - 1:
                snapshots.append(pool.submit(_save, store, directory, request))
            keys = rng.integers(1, 2**62, REQUEST_KEYS)
            saving.append(any(not each.done() for each in snapshots))
            start = time.perf_counter()
            store.sync("bench", keys, deltas, "worker", request)
            seconds.append(time.perf_counter() - start)
            store.advance(request)
            bar.update()
        for each in snapshots:
            each.result()
    return np.array(seconds), np.array(saving)


def _save(store, directory, step):
    with tempfile.TemporaryDirectory(dir=directory) as path:
        files = store.save(path, step)
        store.save(path, step + 1, files[-1]["snapshot"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000, help="rows that the table grows to")
    parser.add_argument("--limits", action="store_true", help="the table has max_rows and ttl_steps, and tracks use")
    flags = parser.parse_args()
    if flags.rows < QUARTERS * REQUEST_KEYS:
        parser.error(f"--rows={flags.rows} is less than {QUARTERS} requests of {REQUEST_KEYS} keys")
    with tempfile.TemporaryDirectory() as directory:
        seconds, saving = measure(flags.rows, flags.limits, directory)
    result = {"rows": flags.rows, "request_keys": REQUEST_KEYS, "requests": len(seconds)}
    for name, part in (("", seconds[~saving]), ("_while_saving", seconds[saving])):
        result[f"longest_request{name}_ms"] = round(float(part.max(initial=0)) * 1e3, 1)
        result[f"median_request{name}_ms"] = round(float(np.median(part)) * 1e3, 1) if len(part) else None
    print(json.dumps(result))


if __name__ == "__main__":
    main()
