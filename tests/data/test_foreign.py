import collections
import itertools
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data.convert import convert
from ctr_trainer.data.parquet import ForeignParquet, fit_statistics, scan
from ctr_trainer.data.reader import BatchReader, open_dataset
from ctr_trainer.system.messages.errors import UserError
from tests.data import foreign
from tests.data.foreign import SPEC

ROWS = 101


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return foreign.write_spark(tmp_path_factory.mktemp("foreign") / "clicks", ROWS)


def source(path, spec=SPEC):
    return ForeignParquet(json.loads(json.dumps(scan(path, spec))), spec, fit_statistics(path, spec))


def reader(path, **options):
    return BatchReader(source(path), 8, shuffle_buffer=30, **options)


def rows_of(batches):
    return [int(row) for b in batches for row in b.ids["row"][: b.size]]


def test_what_is_read_is_what_conversion_writes(path, tmp_path):
    convert("parquet", path, tmp_path / "out", SPEC, progress=False)
    converted = BatchReader(tmp_path / "out", 8, shuffle=False, epochs=1)
    direct = reader(path, shuffle=False, epochs=1)
    for a, b in zip(direct, converted, strict=True):
        assert a.size == b.size and a.dense.tobytes() == b.dense.tobytes()
        assert np.array_equal(a.keys["dim4"], b.keys["dim4"]) and np.array_equal(a.labels, b.labels)
        assert np.array_equal(a.weights, b.weights) and a.ids["row"].tolist() == b.ids["row"].tolist()
        for name in ("tags", "history"):
            assert np.array_equal(a.bags[name].values, b.bags[name].values)
            assert np.array_equal(a.bags[name].splits, b.bags[name].splits)
    assert direct.spec == converted.spec
    for name, figures in open_dataset(tmp_path / "out").statistics.items():
        assert direct.statistics[name] == pytest.approx(figures)


def test_several_readers_hash_the_same_keys_in_the_same_order(path):
    one = list(reader(path, epochs=2))
    for a, b in zip(reader(path, epochs=2, num_readers=3), one, strict=True):
        assert np.array_equal(a.keys["dim4"], b.keys["dim4"]) and a.dense.tobytes() == b.dense.tobytes()
        assert a.ids["row"].tolist() == b.ids["row"].tolist()
        assert np.array_equal(a.bags["tags"].values, b.bags["tags"].values)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_every_row_comes_once_an_epoch_whatever_the_number_of_workers(path, size):
    workers = [list(reader(path, rank=rank, size=size, epochs=2)) for rank in range(size)]
    assert len({len(batches) for batches in workers}) == 1
    assert collections.Counter(rows_of(itertools.chain(*workers))) == collections.Counter(2 * list(range(ROWS)))
    assert rows_of(itertools.chain(*workers)) != 2 * list(range(ROWS))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 3), (3, 1)])
def test_a_run_resumes_at_its_position(path, before, after):
    taken = [itertools.islice(reader(path, rank=rank, size=before), 3) for rank in range(before)]
    rows = [row for batches in taken for row in rows_of(batches)]
    position = json.loads(json.dumps(reader(path, size=before).position_after(3)))
    for rank in range(after):
        rows += rows_of(reader(path, rank=rank, size=after, epochs=1, position=position))
    assert sorted(rows) == list(range(ROWS))


def test_files_without_rows_are_read_too(tmp_path):
    pq.write_table(foreign.table(0, 0).append_column("day", pa.array([], pa.string())), tmp_path / "a.parquet")
    pq.write_table(foreign.table(0, 5).append_column("day", pa.array(["d"] * 5)), tmp_path / "b.parquet")
    assert sorted(rows_of(reader(tmp_path, epochs=1))) == list(range(5))


def test_only_the_features_that_need_statistics_are_passed_over():
    no_need = SPEC.to_dict() | {"dense": [{"name": "price", "transform": "log1p"}]}
    assert fit_statistics("nowhere", type(SPEC).from_dict(no_need)) == {}


def test_quantiles_are_fitted_before_the_first_batch(tmp_path):
    table = foreign.table(0, 40).append_column("day", pa.array(["d"] * 40))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=16)
    spec = type(SPEC).from_dict(SPEC.to_dict() | {"dense": [], "sparse": [{"name": "row", "dim": 2, "quantiles": 4}]})
    batches = list(BatchReader(source(tmp_path, spec), 40, shuffle=False, epochs=1))
    assert len(set(batches[0].keys["dim2"][:, 0])) == 4


def test_the_pieces_of_a_number_are_fitted_before_the_first_batch(tmp_path):
    table = foreign.table(0, 40).append_column("day", pa.array(["d"] * 40))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=16)
    dense = [{"name": "row", "transform": "piecewise_linear", "pieces": 4}]
    spec = type(SPEC).from_dict(SPEC.to_dict() | {"dense": dense, "sparse": []})
    figures = fit_statistics(tmp_path / "a.parquet", spec)["row"]
    assert (figures["min"], figures["boundaries"], figures["max"]) == (0, [10, 20, 30], 39)


def test_a_bad_row_is_named_by_file_and_row(tmp_path):
    table = foreign.table(0, 20).append_column("day", pa.array(["d"] * 20))
    table = table.set_column(1, "clicked", pa.array([2 if i == 17 else 0 for i in range(20)]))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=8)
    layout = scan(tmp_path / "a.parquet", SPEC)
    with pytest.raises(UserError, match="a.parquet, row 18, column 'clicked': 2 is not a label of 0 or 1"):
        list(BatchReader(ForeignParquet(layout, SPEC, {}), 8, epochs=1))


def test_a_file_that_changed_since_is_refused(tmp_path):
    table = foreign.table(0, 20).append_column("day", pa.array(["d"] * 20))
    pq.write_table(table, tmp_path / "a.parquet")
    layout = scan(tmp_path, SPEC)
    pq.write_table(table.slice(0, 19), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="a.parquet: row group 0 has 19 rows, expected 20.*must stay as they are"):
        list(BatchReader(ForeignParquet(layout, SPEC, {}), 8, epochs=1))
    pq.write_table(table.drop_columns(["user"]), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="a.parquet: no column 'user' for feature 'user'"):
        list(BatchReader(ForeignParquet(layout, SPEC, {}), 8, epochs=1))
