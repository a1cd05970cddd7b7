"""The figures of a data set, and conversion by several threads: the same files, figures and errors as by one."""

import gc
import os
import signal
import threading

import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.data.conversion import text_blocks
from ctr_trainer.data.conversion.writer import DatasetWriter
from ctr_trainer.data.statistics import Distinct, Moments, Quantiles
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import SPEC, run, write

KEYS = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 50_000)


def boundaries(values, count, **options):
    quantiles = Quantiles(count, **options)
    for part in np.array_split(np.float32(values), 3):
        quantiles.add(part)
    return quantiles.boundaries().tolist()


def test_buckets_are_equally_full():
    assert boundaries([4, 1, 3, 2, 8, 7, 6, 5], 4) == [3, 5, 7]  # {1, 2}, {3, 4}, {5, 6}, {7, 8}
    assert boundaries([1, 2, 3, np.nan, np.nan, 4], 2) == [3]


def test_no_bucket_is_empty():
    assert boundaries([0, 0, 0, 0, 0, 0, 1, 2], 4) == [1]
    assert boundaries([5, 5, 5], 10) == []
    assert boundaries([], 10) == boundaries([np.nan], 10) == []


def test_more_values_than_are_kept_are_sampled_uniformly():
    values = np.arange(100_000)
    found = boundaries(values, 4, sample=5_000)
    # The deviation of a sample's median is 0.5 / sqrt(5000) = 0.7 % of the range.
    np.testing.assert_allclose(found, [25_000, 50_000, 75_000], atol=4_000)
    assert boundaries(values, 4, sample=5_000) == found


def test_merged_moments_equal_the_moments_of_the_whole():
    values = np.array([1.0, np.nan, 4.0, 1e6, 1e6 + 2, np.nan, -3.0])
    moments = Moments()
    for part in (values[:2], values[2:2], values[1:2], values[2:]):
        moments.add(part)
    present = values[~np.isnan(values)]
    wanted = dict(mean=present.mean(), std=present.std(), min=-3.0, max=1e6 + 2, count=5)
    assert moments.to_dict() == pytest.approx(wanted)
    assert Moments().to_dict() == dict(mean=0.0, std=0.0, min=0.0, max=0.0, count=0)


def distinct(*parts):
    found = Distinct(size=1000)
    for keys in parts:
        found.add(pa.array(keys))
    return found


def test_few_keys_are_counted_exactly_and_0_is_none():
    assert distinct(KEYS[:900], np.concatenate([KEYS[500:999], [0]])).count == 999


def test_many_keys_are_estimated_and_keys_of_two_parts_count_once():
    first, second = distinct(KEYS[:30_000]), distinct(KEYS[20_000:])
    assert [first.count, second.count] == pytest.approx([30_000] * 2, rel=0.1)  # three standard errors
    first.merge(second)
    assert first.count == distinct(KEYS).count == pytest.approx(50_000, rel=0.1)


# A Parquet writer that is left open writes to its closed file when it is collected.
CLOSED = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
SMALL = dict(rows_per_group=30, rows_per_file=70)
BUCKETS = FeatureSpec.from_dict(
    SPEC.to_dict()
    | {"sparse": [*SPEC.to_dict()["sparse"], {"name": "xq", "column": "x", "dim": 2, "quantiles": 4}]}
    | {"dense": [{"name": "x"}, {"name": "xp", "column": "x", "transform": "piecewise_linear", "pieces": 3}]}
)


@pytest.fixture
def rows(tmp_path, monkeypatch):
    """A CSV of 400 rows in blocks of some 15, of which each thirtieth is bad: too short, or its label is no label."""
    monkeypatch.setattr(text_blocks, "BLOCK", 300)
    chance = np.random.default_rng(1)
    lines = [f"{i},{i % 2},{chance.normal():.3f},1,{i % 9},a{i % 7}|b{i}" for i in range(400)]
    for at in range(29, 350, 60):
        lines[at], lines[at + 30] = "short,1", lines[at + 30].replace(",", ",x", 1)
    return write(tmp_path / "a.csv", "row,y,x,w,c,tags\n" + "\n".join(lines) + "\n")


def files(directory):
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("split", [None, "time:0.5,0.5:x"])
def test_any_number_of_threads_writes_the_same_bytes(rows, tmp_path, caplog, split):
    written, told = [], []
    for threads in (1, 3):
        caplog.clear()
        run("csv", rows, tmp_path / str(threads), BUCKETS, split, max_bad_rows=99, num_threads=threads, **SMALL)
        written.append(files(tmp_path / str(threads)))
        told.append([record.getMessage() for record in caplog.records])
    assert written[1] == written[0] and len(written[0]) > 6
    assert told[1] == told[0] and len(told[0]) == 12
    assert ["line 31:" in told[0][0], "line 61, column 'y'" in told[0][1]] == [True, True]


@CLOSED
@pytest.mark.parametrize(("budget", "line"), [(0, 31), (11, 361)])
def test_any_number_of_threads_ends_at_the_same_bad_row_and_leaves_no_file(rows, tmp_path, budget, line):
    for threads in (1, 4):
        with pytest.raises(UserError, match=rf"a.csv, line {line}\b.*\(now {budget}\)"):
            run("csv", rows, tmp_path / "out", SPEC, max_bad_rows=budget, num_threads=threads, **SMALL)
        assert not (tmp_path / "out").exists()
    gc.collect()


@CLOSED
def test_ctrl_c_leaves_no_file_and_no_thread(rows, tmp_path, monkeypatch):
    write_group, written, before = DatasetWriter._write_group, [], threading.enumerate()

    def interrupted(self, group):
        write_group(self, group)
        written.append(sorted(os.listdir(self.path)))
        if len(written) == 4:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(DatasetWriter, "_write_group", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run("csv", rows, tmp_path / "out", SPEC, max_bad_rows=99, num_threads=3, **SMALL)
    assert "part-00000.parquet" in written[-1] and not (tmp_path / "out").exists()
    left = {*threading.enumerate()} - {*before}
    assert not [thread for thread in left if thread.name != "tqdm_monitor"]  # The first bar of a process starts it.
    gc.collect()


def test_merged_samples_of_a_column_are_samples_of_both():
    def quantiles(*values):
        made = Quantiles(4, sample=1000)
        made.add(np.concatenate(values).astype(np.float32))
        return made

    whole, first = quantiles(np.arange(900)), quantiles(np.arange(400))
    first.merge(quantiles(np.arange(400, 900)))
    assert first.boundaries().tolist() == whole.boundaries().tolist()  # all values are kept: exact
    many, few = quantiles(np.arange(30_000)), quantiles(np.arange(30_000, 40_000))
    many.merge(few)  # a quarter of 40,000 values is above 30,000, though each sample kept 1000
    assert many.boundaries() == pytest.approx([10_000, 20_000, 30_000], abs=1500)
    assert len(many._values()) == 1000 and many._seen == 40_000
