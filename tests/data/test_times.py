"""Times of a source: what a split goes by, and features that are derived from them."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.conversion.infer import infer
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.system.messages.errors import UserError
from tests.data.make import read
from tests.data.test_infer import write_csv

START = datetime.datetime(2024, 2, 27, 22, tzinfo=datetime.timezone.utc)
TIMES = [START + datetime.timedelta(hours=7 * i) for i in range(10)]
FORMS = {
    "date": lambda t: t.strftime("%Y-%m-%d"),
    "text": lambda t: t.strftime("%Y-%m-%d %H:%M:%S"),
    "zone": lambda t: (t + datetime.timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%S+02:00"),
    "seconds": lambda t: str(int(t.timestamp())),
    "milliseconds": lambda t: str(int(t.timestamp() * 1000)),
    "yymmddhh": lambda t: t.strftime("%y%m%d%H"),
}
SPEC = FeatureSpec.from_dict(
    {
        "name": "times",
        "label": {"column": "y"},
        "ids": ["row"],
        "sparse": [
            {"name": "hour", "column": "at", "dim": 2, "derive": "hour"},
            {"name": "weekday", "column": "at", "dim": 2, "derive": "weekday"},
        ],
    }
)


def _read(path):
    """Returns (rows, keys of hour and weekday) of a data set, in its order."""
    (batch,) = BatchReader(path, 5, shuffle=False, epochs=1)
    return batch.ids["row"].tolist(), batch.keys["dim2"].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_a_split_by_time_takes_each_form_and_hour_and_weekday_are_features(tmp_path, form):
    order = np.random.default_rng(0).permutation(10)
    lines = "".join(f"{i},{i % 2},{FORMS[form](TIMES[i])}\n" for i in order)
    (tmp_path / "a.csv").write_text("row,y,at\n" + lines)
    convert("csv", tmp_path / "a.csv", tmp_path / "out", SPEC, split="time:0.5,0.5:at", progress=False)
    for part, expected in (("train", range(5)), ("test", range(5, 10))):
        rows, found = _read(tmp_path / "out" / part)
        assert sorted(map(int, rows)) == list(expected)
        times = [TIMES[int(row)] for row in rows]
        hours = [0 if form == "date" else t.hour for t in times]
        weekdays = [t.weekday() for t in times]
        expected = [keys("hour", pa.array(hours)), keys("weekday", pa.array(weekdays))]
        assert found == np.transpose(expected).tolist()


def test_timestamps_of_parquet_are_split_by_and_derived_from(tmp_path):
    table = pa.table(
        {
            "row": list(range(10)),
            "y": [i % 2 for i in range(10)],
            "at": pa.array([t.replace(tzinfo=None) for t in TIMES], pa.timestamp("us")),
        }
    )
    pq.write_table(table.take(list(range(9, -1, -1))), tmp_path / "a.parquet")
    convert("parquet", tmp_path / "a.parquet", tmp_path / "out", SPEC, split="time:0.5,0.5:at", progress=False)
    rows, found = _read(tmp_path / "out" / "train")
    assert rows == [4, 3, 2, 1, 0]
    assert [key for key, _ in found] == keys("hour", pa.array([TIMES[row].hour for row in rows])).tolist()


@pytest.mark.parametrize("kind", [pa.date32(), pa.date64(), pa.timestamp("ns"), pa.timestamp("us", "UTC")], ids=str)
def test_dates_of_parquet_before_1973_are_both_derived_from_and_numbers(tmp_path, kind):
    days = pa.array([datetime.date(1970, 2, 28), None, datetime.date(1955, 3, 2)]).cast(kind)
    pq.write_table(pa.table({"y": [0, 1, 0], "at": days}), tmp_path / "a.parquet")
    day = {"name": "day", "column": "at", "dim": 2, "derive": "weekday"}
    features = {"dense": [{"name": "age", "column": "at"}], "sparse": [day]}
    spec = FeatureSpec.from_dict({"name": "old", "label": {"column": "y"}, **features})
    convert("parquet", tmp_path / "a.parquet", tmp_path / "out", spec, progress=False)
    found = read(tmp_path / "out")
    assert found["day"].to_pylist() == keys("day", pa.array(["5", None, "2"])).tolist()
    np.testing.assert_array_equal(found["age"], np.float32([5_011_200, np.nan, -468_201_600]))


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        (None, "line 3, column 'at': 'noon' is not a time, such as 2024-01-31 08:30:00"),
        ("time:0.5,0.5:at", "line 3, column 'at': 'noon' is not a"),
    ],
)
def test_what_is_no_time_is_a_bad_row_that_is_named(tmp_path, split, expected):
    (tmp_path / "a.csv").write_text("row,y,at\n1,0,2024-01-31\n2,1,noon\n3,1,\n")
    with pytest.raises(UserError) as error:
        convert("csv", tmp_path / "a.csv", tmp_path / "out", SPEC, split=split, progress=False)
    assert expected in str(error.value)


def test_a_dense_feature_of_dates_has_no_other_numbers(tmp_path):
    spec = FeatureSpec.from_dict({"name": "age", "label": {"column": "y"}, "dense": [{"name": "at"}]})
    (tmp_path / "a.csv").write_text("y,at\n0,2024-01-31\n1,\n")
    data = convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)["output"]
    ((found, missing),) = next(iter(BatchReader(data, 2, shuffle=False, epochs=1))).dense.T
    assert found == 1706659200 and np.isnan(missing)
    (tmp_path / "b.csv").write_text("y,at\n0,2024-01-31\n1,24013100\n")  # Times of derive may be written so.
    with pytest.raises(UserError, match="line 3, column 'at': '24013100' is not a date, as the first value"):
        convert("csv", tmp_path / "b.csv", tmp_path / "bad", spec, progress=False)


def test_a_missing_time_has_the_key_of_the_missing(tmp_path):
    (tmp_path / "a.csv").write_text("row,y,at\n1,0,\n")
    convert("csv", tmp_path / "a.csv", tmp_path / "out", SPEC, progress=False)
    batch = next(iter(BatchReader(tmp_path / "out", 1, epochs=1)))
    assert batch.keys["dim2"].tolist() == [[keys(name, pa.array([""]))[0] for name in ("hour", "weekday")]]


@pytest.mark.parametrize(
    ("form", "order", "parquet"),
    [("%d/%m/%Y", "day first", False), ("%d.%m.%Y %H:%M", "day first", True), ("%m/%d/%Y", "month first", False)],
)
def test_an_inferred_spec_says_which_order_of_day_and_month_it_took(tmp_path, parquet, form, order):
    days = [START + datetime.timedelta(hours=31 * i) for i in range(300)]
    columns = {"y": [i % 7 // 6 for i in range(300)], "at": [day.strftime(form) for day in days]}
    source = write_csv(tmp_path / "a.csv", columns)
    if parquet:
        source = tmp_path / "a.parquet"
        pq.write_table(pa.table(columns), source)
    spec = infer(source, tmp_path / "s.toml")
    assert spec.ids == ("at",) and f"a time ({order}: {columns['at'][0]})" in (tmp_path / "s.toml").read_text()
    assert {f.derive for f in spec.sparse} >= {order.replace(" ", "_") + "_weekday"}
    convert("parquet" if parquet else "csv", source, tmp_path / "out", spec, split="time:0.5,0.5:at", progress=False)
    data = pq.read_table(tmp_path / "out" / "test")
    assert data["id:at"].to_pylist() == columns["at"][150:]
    expected = keys("at_weekday", pa.array([day.weekday() for day in days[150:]]))
    assert data["at_weekday"].to_pylist() == expected.tolist()


def test_an_inferred_spec_asks_for_the_order_that_the_dates_do_not_show(tmp_path):
    columns = {
        "y": [i % 7 // 6 for i in range(300)],
        "at": [f"0{1 + i % 9}/0{1 + i // 9 % 9}/2024" for i in range(300)],
    }
    spec = infer(write_csv(tmp_path / "a.csv", columns | {"c": [i % 5 for i in range(300)]}), tmp_path / "s.toml")
    assert spec.ids == ("at",) and [f.name for f in spec.sparse] == ["c"]
    text = (tmp_path / "s.toml").read_text()
    assert "dates such as 01/01/2024: is it day or month first? Add a feature with" in text
