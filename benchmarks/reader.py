"""The input pipeline alone on one core: rows a CPU second, beside what DeepFM consumes there. The last line is JSON.

Data in the shape of Criteo (26 single-valued features, 13 numbers), converted; once more with 4 of the 26 as bags of 5
values on average; and the first also as a Parquet file of strings, read without conversion. CPU seconds count every
thread, so that what a decoder's pool took from the training core is in them.

Example: python benchmarks/reader.py --rounds 3
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sides import Side

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
    from ctr_trainer.files.unfinished import Unfinished

    rng = np.random.default_rng(0)
    keys = rng.integers(1, 2**63, (FIELDS, VALUES))
    bench_spec = spec(bags)
    with Unfinished(directory, "data set") as unfinished:
        writer = DatasetWriter(unfinished, "", bench_spec, rows, 50_000)
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
        unfinished.finish()


def write_strings(path, rows):
    """Writes a Parquet file of the same shape, its values strings of 8 characters; -> its Source, read as it is."""
    from ctr_trainer.data.foreign import ForeignParquet, scan

    rng = np.random.default_rng(0)
    values = pa.array([f"{value:08x}" for value in rng.integers(0, 2**32, VALUES)])
    with contextlib.ExitStack() as stack:
        writer = None
        for _ in range(0, rows, 50_000):
            columns = {f"I{i}": rng.standard_normal(50_000, np.float32) for i in range(1, DENSE + 1)}
            for i in range(1, FIELDS + 1):
                columns[f"C{i}"] = values.take(pa.array(np.minimum(rng.zipf(1.2, 50_000), VALUES) - 1))
            columns["label"] = (rng.random(50_000) < 0.25).astype(np.int8)
            table = pa.table(columns)
            writer = writer or stack.enter_context(pq.ParquetWriter(path, table.schema))
            writer.write_table(table)
    return ForeignParquet(scan(path, spec(0)), spec(0), {})


def rows_per_cpu_second(data):
    """-> rows of one shuffled epoch by the CPU seconds that they took."""
    from ctr_trainer.data.reader import BatchReader

    start, rows = time.process_time(), 0
    for batch in BatchReader(data, BATCH_SIZE, epochs=1):
        rows += batch.size
    return rows / (time.process_time() - start)


def write_sources(directory, rows):
    """-> by name, the data sets that are read, each of so many rows: single values, bags, Parquet of strings."""
    write(directory / "single", rows, 0)
    write(directory / "bags", rows, BAGS)
    strings = write_strings(directory / "strings.parquet", rows)
    return {"single": directory / "single", "bags": directory / "bags", "strings": strings}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of each data set, a multiple of 50,000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="of DeepFM in each round; 0 leaves it out")
    parser.add_argument("--core", type=int, default=0, help="the core to run on")
    flags = parser.parse_args()
    os.sched_setaffinity(0, {flags.core})
    figures = {"single": [], "bags": [], "strings": []}
    deepfm, trainer = [], Side("ours.py", (f"--steps={flags.steps}", f"--cores={flags.core}"))
    with tempfile.TemporaryDirectory() as directory:
        sources = write_sources(pathlib.Path(directory), flags.rows)
        for source in sources.values():
            rows_per_cpu_second(source)  # compiles the kernels
        for _ in range(flags.rounds):
            for name, source in sources.items():
                figures[name].append(rows_per_cpu_second(source))
            if flags.steps:
                deepfm.append(trainer.examples_per_sec())
    result = {f"{name}_rows_per_cpu_sec": round(statistics.median(values)) for name, values in figures.items()}
    if deepfm:
        result["deepfm_examples_per_sec"] = round(statistics.median(deepfm))
        for name, values in figures.items():
            ratio = statistics.median(a / b for a, b in zip(values, deepfm, strict=True))
            result["ratio" if name == "single" else f"{name}_ratio"] = round(ratio, 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
