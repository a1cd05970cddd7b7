"""Data sets for the tests below, and how they are made and read."""

import pathlib

import pyarrow as pa
import pyarrow.parquet as pq

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.features.spec import FeatureSpec

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "configs" / "features"

SPEC = FeatureSpec.from_dict(
    {
        "name": "rows",
        "ids": ["row"],
        "weight": "w",
        "label": {"column": "y"},
        "dense": [{"name": "x"}],
        "sparse": [{"name": "c", "dim": 4}, {"name": "row", "dim": 2}, {"name": "tags", "dim": 4, "combiner": "sum"}],
    }
)


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def run(*args, **options):
    return convert(*args, progress=False, **options)


def read(path):
    """Returns the table of a converted data set."""
    return pa.concat_tables([pq.read_table(pathlib.Path(path, file["name"])) for file in open_dataset(path).files])


def make_rows(directory, rows, rows_per_group=7, rows_per_file=30):
    """A data set of numbered rows: row i has label i % 2, x = i, weight 1, c = i % 3 and i % 4 tags, t0, t1 ..."""
    source = directory / "rows.csv"
    lines = [f"{i},{i % 2},{i},1,{i % 3},{'|'.join(f't{k}' for k in range(i % 4))}" for i in range(rows)]
    source.write_text("row,y,x,w,c,tags\n" + "".join(line + "\n" for line in lines))
    output = directory / "rows"
    run("csv", source, output, SPEC, rows_per_group=rows_per_group, rows_per_file=rows_per_file)
    return output
