"""A process that trains a table which another one owns: `python shared_worker.py ADDRESS WHAT RANK`."""

import dataclasses
import sys

import numpy as np

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.store.worker_rows import TableRows
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig

CONFIG = TableConfig("dim2", (2,), (0.5,), optimizer="sgd", seed=7)
HOT = np.arange(1, 501, dtype=np.int64)
STEPS = 400
LIMITED = dataclasses.replace(CONFIG, max_rows=700)


def open_table(address=None, config=CONFIG):
    """Returns (memory, table); without an address, this process is the owner."""
    memory = SharedMemory(address)
    return memory, Table(config, True, None, memory.under(config.name))


def gradient_of(keys):
    """Returns a different gradient for each key, float32[U, 2], so that steps of different keys cannot compensate."""
    return np.repeat((keys % 97 + 100).astype(np.float32)[:, None], 2, axis=1)


def crowd(table, rank):
    """Steps random keys, of which the table has room for a third."""
    rng, rows = np.random.default_rng(rank), TableRows(table)
    for _ in range(STEPS):
        keys = np.unique(rng.integers(1, 2000, 300))
        rows.apply_gradients(keys, rows.find_or_create(keys), [gradient_of(keys)], 1.0)


def step(table, keys):
    """Subtracts 1 from each weight of the keys' rows."""
    rows = TableRows(table)
    rows.apply_gradients(keys, rows.find_or_create(keys), [np.ones((len(keys), 2), np.float32)], 1.0)


def fresh_keys(rank, number):
    """Returns the new keys of this step, int64[300]; both workers have every third key."""
    keys = np.arange(300, dtype=np.int64) + 1000 + 300 * number
    return np.where(keys % 3 == 0, keys, keys + (rank + 1) * 10_000_000)


if __name__ == "__main__":
    address, what, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
    _, table = open_table(address, LIMITED if what == "crowded" else CONFIG)
    print("ready", flush=True)
    sys.stdin.readline()
    if what == "hold":
        with table.lock.alone():
            print("holding", flush=True)
            sys.stdin.readline()
    if what == "crowded":
        crowd(table, rank)
        sys.exit()
    for number in range(STEPS):
        step(table, HOT if what == "hot" else fresh_keys(rank, number))
