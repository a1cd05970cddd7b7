"""The input pipeline alone on one core: rows a CPU second, beside what DeepFM consumes there. The last line is JSON.

Data in the shape of Criteo (26 single-valued features, 13 numbers), converted; once more with 4 of the 26 as bags of 5
values on average; and the first also as a Parquet file of strings, read without conversion. CPU seconds count every
thread, so that what a decoder's pool took from the training core is in them.

Example: python benchmarks/reader.py --rounds 3
"""

import argparse
import json
import os
import pathlib
import statistics
import tempfile
import time

import numpy as np
import pyarrow as pa
from single_worker import measure

FIELDS, DENSE, BAGS, BAG_LENGTH = 26, 13, 4, 5
VALUES = 77_000  # a field, as in workload W1
BATCH_SIZE = 1024


def spec(bags):
    """-> FeatureSpec whose last `bags` sparse features are multi-valued."""
    from ctr_trainer.features.spec import FeatureSpec

    names = [f"C{i}" for i in range(1, FIELDS + 1)]
    sparse = [{"columns": names[: FIELDS - bags]}] + ([{"columns": names[-bags:], "combiner": "mean"}] if bags else [])
    dense = [{"columns": [f"I1..I{DENSE}"], "transform": "log1p"}]
    return FeatureSpec.from_dict(
        {"name": "bench", "label": {"column": "label"}, "defaults": {"dim": 16}, "dense": dense, "sparse": sparse}
    )


def write(directory, rows, bags):
    """Writes a converted data set of Zipf(1.2) values and standard normal numbers."""
    from ctr_trainer.data.writer import DatasetWriter

    rng = np.random.default_rng(0)
    keys = rng.integers(1, 2**63, (FIELDS, VALUES))
    bench_spec = spec(bags)
    writer = DatasetWriter(directory, bench_spec, rows, 50_000)
    for _ in range(0, rows, 50_000):
        columns = {f.name: rng.standard_normal(50_000, np.float32) for f in bench_spec.dense}
        for field, feature in enumerate(bench_spec.sparse):
            lengths = np.ones(50_000, np.int64)
            if feature.combiner:
                lengths = rng.integers(0, 2 * BAG_LENGTH + 1, 50_000)
            values = pa.array(keys[field][np.minimum(rng.zipf(1.2, lengths.sum()), VALUES) - 1])
            splits = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
            columns[feature.name] = pa.ListArray.from_arrays(splits, values) if feature.combiner else values
        columns["label"] = (rng.random(50_000) < 0.25).astype(np.float32)
        writer.write(pa.table(columns))
    writer.finish(0)


def rows_per_cpu_second(path):
    """-> rows of one shuffled epoch by the CPU seconds that they took."""
    from ctr_trainer.data.reader import BatchReader

    start, rows = time.process_time(), 0
    for batch in BatchReader(path, BATCH_SIZE, epochs=1):
        rows += batch.size
    return rows / (time.process_time() - start)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each data set, a multiple of 50,000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="of DeepFM in each round; 0 leaves it out")
    parser.add_argument("--core", type=int, default=0, help="the core to run on")
    flags = parser.parse_args()
    os.sched_setaffinity(0, {flags.core})
    figures = {"single": [], "bags": [], "deepfm": []}
    with tempfile.TemporaryDirectory() as directory:
        paths = {name: pathlib.Path(directory) / name for name in ("single", "bags")}
        for name, path in paths.items():
            write(path, flags.rows, BAGS if name == "bags" else 0)
            rows_per_cpu_second(path)  # compiles the kernels
        for _ in range(flags.rounds):
            for name, path in paths.items():
                figures[name].append(rows_per_cpu_second(path))
            if flags.steps:
                figures["deepfm"].append(measure("ours.py", flags))
    medians = {name: round(statistics.median(values)) for name, values in figures.items() if values}
    print(json.dumps({"rows_per_cpu_second": medians}))


if __name__ == "__main__":
    main()
