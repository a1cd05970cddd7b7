"""Parquet made elsewhere: converted, and read as it is."""

import datetime
import decimal
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.parquet import ForeignParquet, fit_statistics, scan
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.features.columns import FORM, TYPICAL
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data import foreign
from tests.data.foreign import SPEC
from tests.data.make import read


def run(*args, **options):
    return convert("parquet", *args, progress=False, **options)


def spec(**changes):
    """A spec of a label `y` and what `changes` add."""
    return FeatureSpec.from_dict({"name": "p", "label": {"column": "y"}, "defaults": {"dim": 2}, **changes})


def key(slot, *values):
    return keys(slot, pa.array(values, pa.string())).tolist()


def test_a_spark_directory_converts_with_every_type(tmp_path):
    source = foreign.write_spark(tmp_path / "clicks", 100)
    run(source, tmp_path / "out", foreign.SPEC)
    t = read(tmp_path / "out")
    assert t["id:row"].to_pylist() == list(range(0, 100))
    assert t["label"].to_pylist() == [float(i % 3 == 0) for i in range(100)]
    assert t["price"].to_pylist() == [i / 4 for i in range(100)]
    age = t["age"].to_numpy()
    assert np.isnan(age[::4]).all() and age[5] == 25
    start = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc).timestamp()
    assert t["when"][99].as_py() == np.float32(start + 99)
    assert t["user"].to_pylist()[:2] == key("user", "u0", "u1")
    assert t["item"].to_pylist()[10:12] == key("item", "10", "0")
    assert t["place"].to_pylist()[4:7] == key("place", None, "né", "n")
    assert t["hour"].to_pylist()[23:25] == key("hour", "23", "0")
    assert t["tags"].to_pylist()[4:6] == [key("tags", "t0", "t1", "t2"), []]  # the first max_length = 3
    assert t["history"].to_pylist()[1:3] == [key("history", "0"), key("history", "0", "1")]
    assert t["day"].to_pylist()[39:41] == key("day", "2024-01-01", "2024-01-02")


@pytest.mark.parametrize("also", [[], [{"name": "n", "column": "c"}]], ids=["keys", "keys and a number"])
def test_numbers_as_text_hash_as_in_a_csv(tmp_path, also):
    values = [1.0, 2.5, -3.0, 1e15, 0.1, -0.0, float("nan"), None]
    pq.write_table(pa.table({"y": [0] * 8, "c": values}), tmp_path / "a.parquet")
    sparse = [{"name": "c"}, {"name": "bag", "column": "c", "combiner": "sum"}]
    run(tmp_path / "a.parquet", tmp_path / "out", spec(sparse=sparse, dense=also))
    texts = ["1", "2.5", "-3", "1000000000000000", "0.1", "0", None, None]
    table = read(tmp_path / "out")
    assert table["c"].to_pylist() == key("c", *texts)
    assert table["bag"].to_pylist() == [key("bag", text) if text else [] for text in texts]


@pytest.mark.parametrize(
    ("column", "also"),
    [
        (pa.array(["NA", "1", "-"]), []),
        (pa.array(["NA", "1", "-"]).dictionary_encode(), []),
        (pa.array([b"NA", b"1", b"-"], pa.large_binary()), [{"name": "n", "column": "c"}]),
        (pa.array([-1, 1, -1]), []),
        (pa.array([-1.0, 1.0, None]), [{"name": "n", "column": "c"}]),
    ],
    ids=lambda each: str(each.type) if isinstance(each, pa.Array) else f"{len(each)} numbers",
)
def test_null_values_are_missing_in_any_type_as_in_an_export(tmp_path, column, also):
    ids = pa.array(["NA", "b", "c"])
    table = {"y": [0] * 3, "c": column, "bag": [["NA"], ["NA", "a"], ["", "-"]], "x": [-1, 1, 2], "id": ids}
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    sparse = [{"name": "c"}, {"name": "bag", "combiner": "sum"}]
    dense = [{"name": "x"}, *also]
    form = {"csv": {"null_values": ["", "NA", "-", "-1"]}, "ids": ["id"]}
    run(tmp_path / "a.parquet", tmp_path / "out", spec(sparse=sparse, dense=dense, **form))
    found = read(tmp_path / "out")
    assert found["c"].to_pylist() == key("c", None, "1", None)
    assert found["bag"].to_pylist() == [[], key("bag", "NA", "a"), []]
    assert found["x"].to_pylist() == [-1, 1, 2]  # An export reads this column as numbers.
    assert found["id:id"].to_pylist() == ids.to_pylist()
    if also:
        np.testing.assert_array_equal(found["n"], np.array([np.nan, 1, np.nan], np.float32))


def test_an_id_that_features_read_has_their_null_values_as_in_a_csv(tmp_path):
    table = {"y": [0, 0], "c": ["NA", "a"], "at": ["", "2024-01-31"], "row": ["NA", "a"]}
    sparse = [{"name": "c"}, {"name": "day", "column": "at", "derive": "weekday"}]
    form = {"csv": {"null_values": ["", "NA"]}, "ids": ["c", "at", "row"]}
    of_ids = spec(sparse=sparse, dense=[{"name": "age", "column": "at"}], **form)
    pq.write_table(pa.table(table), tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "out", of_ids)
    found = read(tmp_path / "out")
    assert found["c"].to_pylist() == key("c", None, "a") and found["day"].to_pylist() == key("day", None, "2")
    assert np.isnan(found["age"].to_numpy()).tolist() == [True, False]
    assert found["id:c"].to_pylist() == [None, "a"] and found["id:row"].to_pylist() == ["NA", "a"]


def test_a_number_without_a_text_is_missing_as_in_a_csv(tmp_path):
    pq.write_table(pa.table({"y": ["1", "0"], "x": ["", "2.5"]}), tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "out", spec(dense=[{"name": "x"}]))
    np.testing.assert_array_equal(read(tmp_path / "out")["x"], np.float32([np.nan, 2.5]))


def test_a_label_in_the_names_of_directories_is_read_as_it_is(tmp_path):
    for clicked in range(2):
        (tmp_path / f"y={clicked}").mkdir()
        pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / f"y={clicked}" / "a.parquet")
    one = spec(dense=[{"name": "x"}])
    source = ForeignParquet(scan(tmp_path, one), one, {})
    assert [batch.labels.tolist() for batch in BatchReader(source, 2, shuffle=False, epochs=1)] == [[0, 0], [1, 1]]
    assert source.label_means(lambda text: None) == {"y": 0.5}
    both = spec(dense=[{"name": "y"}])
    assert ForeignParquet(scan(tmp_path, both), both, {}).label_means(lambda text: None) == {"y": 0.5}


def test_a_time_of_int96_may_be_in_any_year(tmp_path):
    times = pa.array([datetime.datetime(9999, 12, 31), datetime.datetime(2024, 1, 31, 8)], pa.timestamp("us"))
    file = tmp_path / "a.parquet"
    pq.write_table(pa.table({"y": [0, 1], "t": times}), file, use_deprecated_int96_timestamps=True)
    run(file, tmp_path / "out", spec(dense=[{"name": "t"}]))
    seconds = [each.replace(tzinfo=datetime.timezone.utc).timestamp() for each in times.to_pylist()]
    assert read(tmp_path / "out")["t"].to_pylist() == [np.float32(each) for each in seconds]


def test_ids_of_which_some_are_missing_stay_whole_numbers(tmp_path):
    users = pa.array([2**53 + 1, None, 5, 5], pa.int64())
    pq.write_table(pa.table({"y": [0, 1] * 2, "user": users, "x": [1] * 4}), tmp_path / "a.parquet", row_group_size=2)
    source = scan(tmp_path / "a.parquet", one := spec(dense=[{"name": "x"}], ids=["user"]))
    reader = BatchReader(ForeignParquet(source, one, {}), 2, shuffle=False, epochs=1)
    assert [batch.ids["user"].tolist() for batch in reader] == [[2**53 + 1, None], [5, 5]]
    assert reader.id_types() == {"user": pa.int64()}
    (padded,) = BatchReader(ForeignParquet(source, one, {}), 6, shuffle=False, epochs=1)
    assert padded.ids["user"].tolist() == [2**53 + 1, None, 5, 5, None, None]


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([pa.array([1, 2], pa.int32()), pa.array([2**40, 4])], [1, 2, 2**40, 4]),
        ([pa.nulls(2), pa.array(["007", "008"])], [None, None, "007", "008"]),
        ([pa.array([1, 2]), pa.array(["007", "008"])], None),
        ([pa.array([1, 2]), pa.array([3.0, None])], None),
    ],
    ids=["whole numbers", "nulls and texts", "numbers and texts", "whole numbers and others"],
)
@pytest.mark.parametrize("rows_per_group", [2, 3, 50_000])
@pytest.mark.parametrize("split", [None, "random:0.5,0.5"])
def test_ids_whose_type_differs_by_file_keep_their_values(tmp_path, ids, expected, rows_per_group, split):
    for number, column in enumerate(ids):
        table = {"y": [0] * len(column), "user": column, "x": [1.0] * len(column)}
        pq.write_table(pa.table(table), tmp_path / f"{number}.parquet")
    one = spec(dense=[{"name": "x"}], ids=["user"])
    options = {"rows_per_group": rows_per_group, "split": split}
    if expected is None:
        with pytest.raises(UserError, match="id:user.*incompatible types.*write the column with one type in all files"):
            run(str(tmp_path / "*.parquet"), tmp_path / "out", one, **options)
        return
    summary = run(str(tmp_path / "*.parquet"), tmp_path / "out", one, **options)
    found = []
    for part in summary["parts"]:
        found += read(tmp_path / "out" / part.replace("all", ""))["id:user"].to_pylist()
    assert found == expected if split is None else sorted(map(str, found)) == sorted(map(str, expected))


@pytest.mark.parametrize("buffer", [0, 1_000_000])
@pytest.mark.parametrize("ids", [[[1, 2], ["007", "008"]], [["007", "008"], [1, 2]]])
def test_ids_of_two_types_are_refused_where_they_meet(tmp_path, ids, buffer):
    for number, column in enumerate(ids):
        pq.write_table(pa.table({"y": [0, 1], "user": column, "x": [1.0, 2.0]}), tmp_path / f"{number}.parquet")
    one = spec(dense=[{"name": "x"}], ids=["user"])
    source, message = ForeignParquet(scan(tmp_path, one), one, {}), "incompatible types.*with one type in all files"
    with pytest.raises(UserError, match=message):
        list(BatchReader(source, 2, shuffle=False, epochs=1, shuffle_buffer=buffer))
    with pytest.raises(UserError, match=message):
        source.sample(4)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["a", None], pa.string()),
        pa.array(["a", None], pa.large_string()),
        pa.array([b"a", None], pa.binary(1)),
        pa.array(["a", None]).dictionary_encode(),
        pa.array([["a"], []]),
        pa.array([["a"], None], pa.large_list(pa.large_string())),
    ],
    ids=lambda column: str(column.type),
)
def test_a_text_is_the_same_category_in_any_type(tmp_path, column):
    pq.write_table(pa.table({"y": [0, 1], "c": column}), tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "out", spec(sparse=[{"name": "c"}]))
    assert read(tmp_path / "out")["c"].to_pylist() == key("c", "a", None)


def test_a_date_splits_and_is_a_category(tmp_path):
    days = [datetime.date(2024, 1, d) for d in (4, 2, 3, 1)]
    table = pa.table({"y": [0, 1, 0, 1], "c": ["a", "b", "c", "d"], "at": days, "d": days})
    pq.write_table(table, tmp_path / "a.parquet")
    run(tmp_path / "a.parquet", tmp_path / "out", spec(sparse=[{"columns": ["c", "d"]}]), split="time:0.5,0.5:at")
    assert read(tmp_path / "out" / "train")["c"].to_pylist() == key("c", "b", "d")
    assert read(tmp_path / "out" / "train")["d"].to_pylist() == key("d", "2024-01-02", "2024-01-01")


def test_a_bad_row_is_named_by_file_and_row(tmp_path):
    pq.write_table(pa.table({"y": [0, 1], "c": [["a"], ["a", "b"]]}), tmp_path / "a.parquet")
    one = spec(sparse=[{"name": "c"}])
    with pytest.raises(UserError, match="a.parquet, row 2, column 'c': .*'a', 'b'.* is not one value.*combiner"):
        run(tmp_path / "a.parquet", tmp_path / "out", one)
    run(tmp_path / "a.parquet", tmp_path / "out", one, max_bad_rows=1)
    assert open_dataset(tmp_path / "out").rows == 1


def test_a_listed_value_may_hold_the_separator_and_a_sequence_keeps_its_newest(tmp_path):
    pq.write_table(
        pa.table({"y": [0, 1], "c": [["a|b", None, "c"], ["d"]], "n": [[1, 2, 3], []]}), tmp_path / "a.parquet"
    )
    lists = [{"name": "c", "combiner": "sum"}, {"name": "n", "combiner": "none", "max_length": 2}]
    run(tmp_path / "a.parquet", tmp_path / "out", spec(sparse=lists))
    assert read(tmp_path / "out")["c"].to_pylist() == [key("c", "a|b", "c"), key("c", "d")]
    assert read(tmp_path / "out")["n"].to_pylist() == [key("n", "2", "3"), []]


def test_a_bucketised_feature_and_each_of_several_labels_want_numbers(tmp_path):
    prices = pa.array([decimal.Decimal("1.5"), decimal.Decimal("2.5")])
    pq.write_table(pa.table({"y": [True, False], "z": ["no", "yes"], "p": prices}), tmp_path / "a.parquet")
    label = [{"column": "y"}, {"column": "z", "positive": "yes"}]
    run(tmp_path / "a.parquet", tmp_path / "out", spec(label=label, sparse=[{"name": "p", "buckets": [2]}]))
    table = read(tmp_path / "out")
    assert table["p"].to_pylist() == [1.5, 2.5]
    assert (table["label:y"].to_pylist(), table["label:z"].to_pylist()) == ([1, 0], [0, 1])


def test_what_cannot_be_used_is_named(tmp_path):
    (tmp_path / "text.parquet").write_text("no Parquet")
    pq.write_table(pa.table({"y": [0], "c": [{"a": 1}]}), tmp_path / "struct.parquet")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "_SUCCESS").touch()
    for name, message in {
        "text.parquet": "text.parquet: not a readable Parquet file",
        "struct.parquet": "struct.parquet: column 'c' has type struct.*cannot be read as feature 'c'",
        "empty": "empty: the directory has no file",
        "none*": "no such file or directory",
    }.items():
        with pytest.raises(UserError, match=message):
            run(tmp_path / name, tmp_path / "out", spec(sparse=[{"name": "c"}]))
    with pytest.raises(UserError, match="no column 'z' for feature 'z'.*the columns are y, c"):
        run(tmp_path / "struct.parquet", tmp_path / "out", spec(sparse=[{"name": "z"}]))


def test_a_later_csv_file_that_lacks_a_column_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("y,c\n1,a\n")
    (tmp_path / "b.csv").write_text("y,d\n1,a\n")
    with pytest.raises(UserError, match="b.csv: no column 'c'"):
        convert("csv", tmp_path / "*.csv", tmp_path / "out", spec(sparse=[{"name": "c"}]), progress=False)


ROWS = 101


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return foreign.write_spark(tmp_path_factory.mktemp("foreign") / "clicks", ROWS)


def source(path, spec=SPEC):
    layout = json.loads(json.dumps(scan(path, spec)))
    return ForeignParquet(layout, spec, fit_statistics(layout, spec))


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
        numbers = {figure: value for figure, value in figures.items() if figure not in (FORM, TYPICAL)}
        assert direct.statistics.get(name, {}) == pytest.approx(numbers)


def test_files_without_rows_and_with_other_whole_numbers_are_read_together(tmp_path):
    pq.write_table(foreign.one_day(0), tmp_path / "a.parquet")
    pq.write_table(foreign.one_day(5), tmp_path / "b.parquet")
    later = foreign.one_day(7).slice(5)
    for kind in (pa.int16(), pa.string()):
        pq.write_table(later.set_column(0, "row", later["row"].cast(kind)), tmp_path / "c.parquet")
        if kind == pa.int16():
            assert sorted(rows_of(reader(tmp_path, epochs=1))) == list(range(7))
    with pytest.raises(UserError, match="id:row.* incompatible types.*write the column with one type in all files"):
        list(reader(tmp_path, epochs=1))


def test_only_the_features_that_need_statistics_are_passed_over():
    no_need = SPEC.to_dict() | {"dense": [{"name": "price", "transform": "log1p"}]}
    assert fit_statistics({}, type(SPEC).from_dict(no_need)) == {}


def test_statistics_of_numbers_leave_out_the_null_values_that_keys_do(tmp_path):
    pq.write_table(pa.table({"y": [0, 1, 0], "x": [-1, 1, 3]}), tmp_path / "a.parquet")
    features = {"dense": [{"name": "x", "transform": "standardize"}], "sparse": [{"name": "c", "column": "x"}]}
    of_both = spec(csv={"null_values": ["", "-1"]}, **features)
    run(tmp_path / "a.parquet", tmp_path / "out", of_both)
    fitted = fit_statistics(scan(tmp_path / "a.parquet", of_both), of_both)
    assert fitted["x"]["mean"] == open_dataset(tmp_path / "out").statistics["x"]["mean"] == 2


def test_pieces_and_quantiles_are_fitted_before_the_first_batch(tmp_path):
    table = foreign.one_day(40)
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=16)
    dense = [{"name": "piece", "column": "row", "transform": "piecewise_linear", "pieces": 4}]
    sparse = [{"name": "level", "column": "row", "dim": 2, "quantiles": 4}]
    spec = type(SPEC).from_dict(SPEC.to_dict() | {"dense": dense, "sparse": sparse})
    found = source(tmp_path, spec)
    figures = found.statistics["piece"]
    assert (figures["min"], figures["boundaries"], figures["max"]) == (0, [10, 20, 30], 39)
    batches = list(BatchReader(found, 40, shuffle=False, epochs=1))
    assert len(set(batches[0].keys["dim2"][:, 0])) == 4


def test_a_bad_row_that_is_read_is_named_by_file_and_row(tmp_path):
    table = foreign.one_day(20)
    table = table.set_column(1, "clicked", pa.array([2 if i == 17 else 0 for i in range(20)]))
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=8)
    layout = scan(tmp_path / "a.parquet", SPEC)
    with pytest.raises(UserError, match="a.parquet, row 18, column 'clicked': 2 is not a label of 0 or 1"):
        list(BatchReader(ForeignParquet(layout, SPEC, {}), 8, epochs=1))


def test_a_file_that_changed_since_is_refused(tmp_path):
    table = foreign.one_day(20)
    pq.write_table(table, tmp_path / "a.parquet")
    layout = scan(tmp_path, SPEC)
    pq.write_table(table.slice(0, 19), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="a.parquet: it has changed: .*must stay as they are"):
        list(BatchReader(ForeignParquet(layout, SPEC, {}), 8, epochs=1))
    pq.write_table(table, tmp_path / "a.parquet")
    reader = BatchReader(ForeignParquet(layout, SPEC, {}), 8, epochs=1)
    assert sum(batch.size for batch in reader) == 20
    pq.write_table(table, tmp_path / "a.parquet")
    os.utime(tmp_path / "a.parquet", (1, 1))
    with pytest.raises(UserError, match="a.parquet was written again while it was read"):
        list(reader)
