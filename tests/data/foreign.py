"""Parquet as others write it, for the tests below."""

import datetime
import decimal

import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.features import toml
from ctr_trainer.features.spec import FeatureSpec

TOML = """
name = "foreign"
ids = ["row"]
[label]
column = "clicked"
[defaults]
dim = 4
transform = "standardize"
[[dense]]
columns = ["price", "age", "when"]
[[sparse]]
columns = ["user", "item", "place", "hour", "day"]
[[sparse]]
columns = ["tags", "history"]
combiner = "mean"
max_length = 3
"""
SPEC = FeatureSpec.from_dict(toml.tomllib.loads(TOML), "foreign.toml")


def table(first, rows):
    """Rows [first, first + rows) of every type: clicked is i % 3 == 0; place and age are null in every fourth row."""
    numbers = range(first, first + rows)
    start = datetime.datetime(2024, 1, 1)
    return pa.table(
        {
            "row": pa.array(numbers, pa.int64()),
            "clicked": pa.array([i % 3 == 0 for i in numbers]),
            "price": pa.array([decimal.Decimal(i) / 4 for i in numbers], pa.decimal128(10, 2)),
            "age": pa.array([None if i % 4 == 0 else 20 + i % 50 for i in numbers], pa.int16()),
            "when": pa.array([start + datetime.timedelta(seconds=i) for i in numbers], pa.timestamp("us", "UTC")),
            "user": pa.array([f"u{i % 7}" for i in numbers], pa.large_string()),
            "item": pa.array([i % 11 for i in numbers], pa.int32()),
            "place": pa.array([None if i % 4 == 0 else "né"[: 1 + i % 2] for i in numbers]).dictionary_encode(),
            "hour": pa.array([float(i % 24) for i in numbers], pa.float64()),
            "tags": pa.array([None if i % 5 == 0 else [f"t{k}" for k in range(i % 5)] for i in numbers]),
            "history": pa.array([list(range(i % 6)) for i in numbers], pa.list_(pa.int64())),
        }
    )


def one_day(rows):
    """Returns the table of the first rows with the column of the directories that `write_spark` makes."""
    return table(0, rows).append_column("day", pa.array(["2024-01-01"] * rows, pa.string()))


def write_spark(directory, rows, rows_per_file=40, rows_per_group=16):
    """A directory as Spark writes it, partitioned by the column `day`; -> its path."""
    for day, first in enumerate(range(0, rows, rows_per_file)):
        part = directory / f"day=2024-01-0{1 + day % 3}"
        part.mkdir(parents=True, exist_ok=True)
        part_file = part / f"part-{day:05d}-c000.snappy.parquet"
        pq.write_table(table(first, min(rows_per_file, rows - first)), part_file, row_group_size=rows_per_group)
        (part / f".{part_file.name}.crc").write_bytes(b"crc")
    (directory / "_SUCCESS").touch()
    return directory
