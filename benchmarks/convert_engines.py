"""Conversion of Criteo's TSV: two cores over one, beside what `pyarrow.csv` reads alone; and Spark's result against it.
The last line is JSON.

The text is made up: 13 numbers and 26 fields of 8 hex digits, whose numbers of values and missing values are those of
the demo. Each figure is that of a process bound to its cores. Rounds alternate, so that ratios hold on a machine whose
speed drifts; `core_limit` is the same ratio for two processes that convert at a time, each on one core: what the
machine has to give.

Example: python benchmarks/convert_engines.py --rows 600000 --rounds 5
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as pa_csv

ROWS, ROUNDS = 600_000, 5
_CHUNK = 100_000
_SPEC = pathlib.Path(__file__).resolve().parents[1] / "configs" / "features" / "criteo.toml"
_HEX, _SHIFTS = np.frombuffer(b"0123456789abcdef", np.uint8), np.arange(28, -4, -4, dtype=np.uint64)
_TIMEOUT = 900  # Seconds of one conversion.


def write_tsv(path, rows, seed=1):
    """Writes text in the form of Criteo's challenge."""
    from ctr_trainer.data.synthetic import FIELDS

    rng = np.random.default_rng(seed)
    with open(path, "wb") as file:
        for _ in range(0, rows, _CHUNK):
            columns = {"label": pa.array((rng.random(_CHUNK) < 0.25).astype(np.int8))}
            for at in range(13):
                values = np.floor(np.exp(rng.standard_normal(_CHUNK) * (0.8 + 0.1 * at) + 1)).astype(np.int64)
                columns[f"I{at + 1}"] = pa.array(values, mask=rng.random(_CHUNK) < 0.22)
            for at, field in enumerate(FIELDS):
                ranks = np.exp(rng.random(_CHUNK) ** field.exponent * np.log(field.vocabulary)).astype(np.uint64)
                mixed = (ranks + np.uint64(at << 24)) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
                digits = _HEX[(mixed[:, None] >> _SHIFTS) & np.uint64(15)].view("S8").ravel()
                columns[f"C{at + 1}"] = pa.array(digits, mask=rng.random(_CHUNK) < field.missing)
            texts = [pc.fill_null(column.cast(pa.string()), "") for column in columns.values()]
            lines = pc.binary_join_element_wise(*texts, "\t")
            file.write(("\n".join(lines.to_pylist()) + "\n").encode())


def convert_two_cores_over_one(directory, rows=ROWS, rounds=ROUNDS):
    """Measures the local converter.

    Args:
      directory: directory for the text and its conversions, which are removed.
      rows: number of rows.
      rounds: number of rounds; the figures are medians.

    Returns:
      dict: `convert_two_cores_over_one`, `core_limit`, `rows_per_sec` (on one core), `of_pyarrow_csv` (its share of
      what pyarrow.csv reads on one core); None for the ratios on a machine of one core.
    """
    directory = pathlib.Path(directory)
    source = directory / "criteo.tsv"
    write_tsv(source, rows)
    cores = sorted(os.sched_getaffinity(0))[:2]
    found = []
    try:
        for _ in range(rounds):
            one = _seconds([(directory / "one", cores[:1])], source)
            each = {"one": one, "read": _seconds([(None, cores[:1])], source)}
            if len(cores) == 2:
                each["two"] = _seconds([(directory / "two", cores)], source)
                each["apart"] = _seconds(
                    [(directory / name, [core]) for name, core in zip("ab", cores, strict=True)], source
                )
            found.append(each)
            print({name: round(rows / seconds) for name, seconds in each.items()}, file=sys.stderr, flush=True)
    finally:
        source.unlink()
    two = len(cores) == 2
    return {
        "convert_two_cores_over_one": round(_median(found, "one", "two"), 2) if two else None,
        "core_limit": round(2 * _median(found, "one", "apart"), 2) if two else None,
        "rows_per_sec": round(rows / statistics.median(each["one"] for each in found)),
        "of_pyarrow_csv": round(_median(found, "read", "one"), 2),
    }


def spark_equals_local(directory, rows=100_000):
    """Converts the same text by a cluster of Spark on this machine, with two executors, and without Spark.

    Args:
      directory: directory for the text and its conversions.
      rows: number of rows, in two files.

    Returns:
      True if all rows have the same keys and values in the same order, and the columns the same types. None without
      PySpark.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        return None
    import pyarrow.parquet as pq

    from ctr_trainer.data.convert import convert
    from ctr_trainer.data.dataset import open_dataset
    from ctr_trainer.features.spec import FeatureSpec
    from ctr_trainer.spark import conversion, convert_files

    directory, spec = pathlib.Path(directory), FeatureSpec.load(_SPEC)
    sources = [directory / f"day_{number}.tsv" for number in range(2)]
    for number, source in enumerate(sources):
        write_tsv(source, rows // 2, seed=number)
    conversion.UNIT_BYTES = 1  # A task for each file.
    # Executors run this Python, and import the package from where this process does.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.executor.memory", "512m")
    builder = builder.config("spark.executorEnv.PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    spark = builder.config("spark.local.dir", str(directory)).getOrCreate()
    try:
        convert_files(spark, "criteo", list(map(str, sources)), directory / "by_spark", spec)
    finally:
        spark.stop()
    convert("criteo", sources, directory / "local", spec, progress=False)
    found, wanted = (
        pa.concat_tables(
            [pq.read_table(directory / name / file["name"]) for file in open_dataset(directory / name).files]
        )
        for name in ("by_spark", "local")
    )
    # NaN stands for a missing number, and is not equal to itself.
    return found.schema.equals(wanted.schema) and all(
        np.array_equal(one.to_numpy().view(np.uint8), other.to_numpy().view(np.uint8))
        for one, other in zip(found.combine_chunks().columns, wanted.combine_chunks().columns, strict=True)
    )


def _median(found, above, below):
    return statistics.median(each[above] / each[below] for each in found)


def _seconds(runs, source):
    """-> seconds of the slowest of conversions that run at a time, each a process bound to its cores."""
    command = [sys.executable, __file__, "--child"]
    children = [
        subprocess.Popen(
            [*command, json.dumps([str(source), str(output or ""), cores])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for output, cores in runs
    ]  # fmt: skip
    try:
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("go\n")
            child.stdin.flush()
        return max(float(child.communicate(timeout=_TIMEOUT)[0]) for child in children)
    finally:
        for child in children:
            child.kill()


def _child(source, output, cores):
    """Converts once, or reads the text if there is no output, when told to, and prints the seconds."""
    os.sched_setaffinity(0, cores)
    pa.set_cpu_count(len(cores))
    from ctr_trainer.data.convert import convert
    from ctr_trainer.features.spec import FeatureSpec

    spec = FeatureSpec.load(_SPEC)

    def run(source, output):
        if not output:
            pa_csv.read_csv(
                source, pa_csv.ReadOptions(autogenerate_column_names=True), pa_csv.ParseOptions(delimiter="\t")
            )
            return
        convert("criteo", source, output, spec, progress=False)

    with tempfile.TemporaryDirectory() as scratch:
        few = pathlib.Path(scratch, "few.tsv")
        with open(source) as text:
            few.write_text("".join(text.readline() for _ in range(2000)))
        run(few, output and str(pathlib.Path(scratch, "few")))
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    run(source, output)
    seconds = time.perf_counter() - start
    for file in pathlib.Path(output).glob("*") if output else ():
        file.unlink()
    print(seconds, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _child(*json.loads(arguments.child))
        return
    with tempfile.TemporaryDirectory() as directory:
        figures = convert_two_cores_over_one(directory, arguments.rows, arguments.rounds)
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps({**figures, "spark_equals_local": spark_equals_local(directory)}))


if __name__ == "__main__":
    main()
