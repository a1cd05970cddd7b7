"""What rows cost one worker in memory that workers share, over a table of its own. The last line is JSON.

Both tables look up and step the batches of workload W1 in turn, on one core.

    shared_lookup_vs_private   time of finding and gathering a batch's rows
    shared_step_vs_private     time of one optimizer step of them
    rounds                     of both tables in turn; the ratios are medians

Example: python benchmarks/shared_rows.py --rounds 9
"""

import argparse
import json
import os
import statistics
import time

import numpy as np

from ctr_trainer.bench import workload
from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.table.shared_table import SharedTable
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig

_BATCHES = 64


def _seconds(table, batches, gradients):
    """-> (seconds of all lookups, seconds of all steps)."""
    looked_up = stepped = 0.0
    for keys in batches:
        start = time.perf_counter()
        slots = table.find_or_create(keys)
        table.take(slots)
        middle = time.perf_counter()
        table.apply_gradients(slots, gradients[len(keys)], 0.01)
        looked_up += middle - start
        stepped += time.perf_counter() - middle
    return looked_up, stepped


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch_size", type=int, default=1024)
    flags = parser.parse_args()
    os.sched_setaffinity(0, {0})
    batches = [np.unique(keys) + 1 for keys in workload.arrays(flags.batch_size, 0)[0][:_BATCHES]]
    config = TableConfig("w1", (16, 1), (0.01, 0.0), "adagrad")
    gradients = {size: [np.full((size, dim), 1e-3, np.float32) for dim in config.dims] for size in map(len, batches)}
    tables = [Table(config, tracked=True), SharedTable(config, True, SharedMemory().under("w1"))]
    for table in tables:
        _seconds(table, batches, gradients)  # Makes the rows.
    rounds = [[_seconds(table, batches, gradients) for table in tables] for _ in range(flags.rounds)]
    lookup, step = (statistics.median(shared[part] / own[part] for own, shared in rounds) for part in range(2))
    print(
        json.dumps(
            {
                "shared_lookup_vs_private": round(lookup, 3),
                "shared_step_vs_private": round(step, 3),
                "rounds": flags.rounds,
            }
        )
    )


if __name__ == "__main__":
    main()
