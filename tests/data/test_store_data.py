"""Data in an object store: read in place and written in place, as local files are. The store is moto's server."""

import gzip
import os

import numpy as np
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data.blocks import ID_PREFIX
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.parquet import ForeignParquet, scan
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError
from tests import object_store, small
from tests.data import foreign, test_tfrecord

BUCKET = f"s3://{object_store.BUCKET}"


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """A converted data set next to its CSV file `rows.csv` and its spec `spec.toml`."""
    return small.make(tmp_path_factory.mktemp("local"), 400)


@pytest.fixture
def no_copies(tmp_path, monkeypatch):
    """A directory for temporary files, which stays empty."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    yield
    assert os.listdir(directory) == []


def test_a_conversion_to_a_store_is_the_local_one(store, local, no_copies):
    spec = FeatureSpec.load(local.parent / "spec.toml")
    text = gzip.compress((local.parent / "rows.csv").read_bytes())
    source = store.put("raw/day=1/rows.csv.gz", text)
    output = f"{BUCKET}/converted"
    split = dict(split="random:0.8,0.2", rows_per_group=50, rows_per_file=150, progress=False)
    convert("csv", str(local.parent / "rows.csv"), local.parent / "split", spec, **split)
    convert("csv", f"{BUCKET}/raw/day=*/*.csv.gz", output, spec, **split)
    names = sorted(str(path.relative_to(local.parent / "split")) for path in (local.parent / "split").rglob("*.*"))
    assert [name.removeprefix("converted/") for name in store.keys("converted")] == names
    for part in ("train", "test"):
        ours, theirs = open_dataset(f"{output}/{part}"), open_dataset(local.parent / "split" / part)
        assert (ours.rows, ours.files, ours.statistics) == (theirs.rows, theirs.files, theirs.statistics)
        for file in theirs.files:
            read = pq.read_table(local.parent / "split" / part / file["name"])
            assert _text(read) == _text(_table(f"converted/{part}/{file['name']}"))
    with pytest.raises(UserError, match=f"output {output}: contains a data set already"):
        convert("csv", source, output, spec, progress=False)


def _table(name):
    with path_of(f"{BUCKET}/{name}").open_parquet() as file:
        return file.read()


def _text(table):
    """Returns a text that is equal for equal tables, in which NaN is equal to NaN."""
    return str(table.to_pydict())


def test_a_reader_resumes_in_a_store_at_its_position_on_a_disk(store, local, no_copies):
    for file in local.iterdir():
        store.put(f"data/{file.name}", file)
    whole = list(BatchReader(str(local), 32, seed=3, epochs=2))
    position = BatchReader(str(local), 32, seed=3, epochs=2).position_after(5)
    rest = list(BatchReader(f"{BUCKET}/data", 32, seed=3, epochs=2, position=position, num_readers=2))
    assert len(whole) == 26 and len(rest) == 21
    for ours, theirs in zip(rest, whole[5:], strict=True):
        assert ours.ids["row"].tolist() == theirs.ids["row"].tolist()
        assert all(np.array_equal(ours.keys[name], theirs.keys[name]) for name in theirs.keys)


def test_parquet_of_others_is_read_in_place(store, tmp_path, no_copies):
    directory = foreign.write_spark(tmp_path / "clicks", 200)
    for file in directory.rglob("*"):
        if file.is_file():
            store.put(f"clicks/{file.relative_to(directory)}", file)
    statistics = {name: {"mean": 1.0, "std": 2.0} for name in ("price", "age", "when")}
    ours, theirs = (
        ForeignParquet(scan(source, foreign.SPEC), foreign.SPEC, statistics)
        for source in (f"{BUCKET}/clicks", str(directory))
    )
    assert ours.group_rows == theirs.group_rows and sum(ours.group_rows) == 200
    for group in range(len(ours.group_rows)):
        assert _text(ours.read(group)) == _text(theirs.read(group))


def test_tfrecords_of_a_store_are_here_one_at_a_time(store, tmp_path, no_copies):
    for part in range(2):
        path = test_tfrecord.write(tmp_path / "part", map(test_tfrecord.row, range(part * 20, part * 20 + 20)), "GZIP")
        store.put(f"records/part-{part}.gz", path)
    convert("tfrecord", f"{BUCKET}/records", f"{BUCKET}/of_records", foreign.SPEC, progress=False)
    rows = _table("of_records/part-00000.parquet")[f"{ID_PREFIX}row"].to_pylist()
    assert list(map(int, rows)) == list(range(40))
