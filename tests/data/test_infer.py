import datetime
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli
from ctr_trainer.data.convert import convert
from ctr_trainer.data.infer import infer
from ctr_trainer.errors import UserError
from ctr_trainer.features.spec import FeatureSpec

ROWS = 400
RNG = np.random.default_rng(0)
COLUMNS = {
    "request": [f"r{i:04}" for i in range(ROWS)],
    "clicked": [i % 4 // 3 for i in range(ROWS)],
    "price": np.round(RNG.lognormal(0, 1.5, ROWS), 3).tolist(),
    "age": [("NA" if i % 10 == 0 else 20 + i % 53) for i in range(ROWS)],
    "user_id": [1000 + i % 97 for i in range(ROWS)],
    "hour": [i % 24 for i in range(ROWS)],
    "city": [("", "Bern", "Köln")[i % 3] for i in range(ROWS)],
    "tags": ["|".join(f"t{k}" for k in range(i % 5)) for i in range(ROWS)],
    "zip": [f"0{i % 9}" for i in range(ROWS)],
    "at": [1_700_000_000 + i for i in range(ROWS)],
    "country": ["CH"] * ROWS,
    "weight": [0.5 + (i % 83) / 7 for i in range(ROWS)],
}


def write_csv(path, columns=COLUMNS, delimiter=",", header=True):
    lines = [list(columns)] if header else []
    lines += zip(*columns.values(), strict=True)
    path.write_text("".join(delimiter.join(map(str, line)) + "\n" for line in lines), encoding="utf-8")
    return path


def comment_of(text, column):
    """The comment above a feature's lines, or behind an id."""
    above = re.search(rf'# (.*)\n(?:name = .*\n)?(?:name|column) = "{column}"\n', text)
    return (above or re.search(rf'"{column}",  # (.*)', text)).group(1)


def test_each_column_becomes_what_it_looks_like_and_a_comment_says_why(tmp_path):
    spec = infer(write_csv(tmp_path / "a.csv"), tmp_path / "spec.toml", progress=False)
    assert spec == FeatureSpec.load(tmp_path / "spec.toml")
    assert spec.name == "spec" and spec.label.column == "clicked"
    assert spec.ids == ("request", "at")
    assert {f.column: (f.name, f.transform) for f in spec.dense} == {
        "price": ("price", "log1p"),
        "age": ("age", "standardize"),
        "weight": ("feature_weight", "standardize"),
    }
    assert {f.name: f.combiner for f in spec.sparse} == {
        "user_id": None,
        "hour": None,
        "city": None,
        "tags": "mean",
        "zip": None,
    }
    assert spec.csv.null_values == ("", "NA")
    text = (tmp_path / "spec.toml").read_text()
    for column, why in {
        "clicked": "0 and 1; 25.00% are 1",
        "price": "skewed",
        "age": "missing in 10.0%: the median stands for them",
        "weight": "not skewed",
        "user_id": "97 different ones, and the name of an id",
        "hour": "24 different ones",
        "city": "text, 2 different values",
        "tags": "'|' separates",
        "request": "100% of the values are there once only",
        "at": "a time",
    }.items():
        assert why in comment_of(text, column), column
    assert "# left out: country: one value" in text


def test_what_is_written_converts_as_it_is(tmp_path, capsys):
    source = write_csv(tmp_path / "a.csv")
    flags = [f"--input={source}", f"--output={tmp_path / 'spec.toml'}"]
    assert cli.main(["convert", "--infer", *flags]) == 0
    assert "label 'clicked', 3 dense and 5 sparse features, 2 columns kept as ids" in capsys.readouterr().out
    spec = FeatureSpec.load(tmp_path / "spec.toml")
    info = convert("csv", source, tmp_path / "out", spec, progress=False)["parts"]["all"]
    assert info.rows == ROWS and info.label_mean == 0.25
    assert info.distinct == {"user_id": 97, "hour": 24, "city": 3, "tags": 4, "zip": 9}
    assert info.statistics["age"]["count"] == 0.9 * ROWS


@pytest.mark.parametrize("delimiter", ["\t", ";", "|"])
def test_the_delimiter_and_a_missing_header_are_seen(tmp_path, delimiter):
    columns = {name: COLUMNS[name] for name in ("clicked", "price", "user_id", "city")}
    spec = infer(write_csv(tmp_path / "a.csv", columns, delimiter, header=False), tmp_path / "s.toml", progress=False)
    assert (spec.csv.delimiter, spec.csv.header, spec.csv.columns) == (delimiter, False, ("c1", "c2", "c3", "c4"))
    assert spec.label.column == "c1" and [f.name for f in spec.dense] == ["c2", "c3"]
    summary = convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)
    assert summary["parts"]["all"].rows == ROWS


def test_parquet_types_decide(tmp_path):
    start = datetime.datetime(2024, 1, 1)
    table = pa.table(
        {
            "target": [i % 2 == 0 for i in range(ROWS)],
            "item": pa.array([f"i{i % 30}" for i in range(ROWS)]).dictionary_encode(),
            "amount": pa.array([i * 7 % 300 for i in range(ROWS)], pa.int32()),
            "at": [start + datetime.timedelta(hours=i) for i in range(ROWS)],
            "history": [list(range(i % 4)) for i in range(ROWS)],
            "vector": [[0.5, 0.25]] * ROWS,
            "info": [{"a": 1}] * ROWS,
            "empty": pa.nulls(ROWS, pa.string()),
        }
    )
    (tmp_path / "data" / "day=mo").mkdir(parents=True)
    pq.write_table(table, tmp_path / "data" / "day=mo" / "a.parquet")
    pq.write_table(table, tmp_path / "data" / "b.parquet")
    spec = infer(tmp_path / "data" / "day=mo", tmp_path / "s.toml", progress=False)
    assert spec.label.column == "target" and spec.ids == ("at",)
    assert [f.name for f in spec.dense] == ["amount"]
    assert {f.name: f.combiner for f in spec.sparse} == {"item": None, "history": "mean"}
    text = (tmp_path / "s.toml").read_text()
    for what in ("vector: of a type", "info: of a type", "empty: no value"):
        assert f"# left out: {what}" in text
    info = convert("parquet", tmp_path / "data" / "b.parquet", tmp_path / "out", spec, progress=False)["parts"]["all"]
    assert (info.rows, info.label_mean) == (ROWS, 0.5)


@pytest.mark.parametrize(
    ("label", "values", "rule"),
    [
        ("income", [">50K" if i % 4 == 0 else "<=50K" for i in range(ROWS)], {"positive": ">50K"}),
        ("rating", [1 + i % 5 for i in range(ROWS)], {"threshold": 3.0}),
    ],
)
def test_a_label_of_other_values_is_made_by_a_rule(tmp_path, label, values, rule):
    source = write_csv(tmp_path / "a.csv", {label: values, "hour": COLUMNS["hour"]})
    spec = infer(source, tmp_path / "s.toml", label=label, progress=False)
    assert {k: v for k, v in vars(spec.label).items() if k in ("positive", "threshold") and v is not None} == rule
    assert f"{label}" in (tmp_path / "s.toml").read_text()


@pytest.mark.parametrize(
    ("columns", "flags", "message"),
    [
        ({"a": [1, 2, 3], "b": [0, 1, 0], "c": [1, 0, 0]}, [], "Name it with --label: the columns of 0 and 1 are b, c"),
        ({"a": ["x", "y", "z"]}, [], "none has 0 and 1 only; all are a"),
        ({"a": [0, 1, 1]}, [], "beside the label 'a' it has no column"),
        ({"a": [0, 1, 1]}, ["--label=b"], "--label=b: no such column; there are a"),
        ({"a": ["x", "y", "z"], "b": [0, 1, 0]}, ["--label=a"], "--label=a: has 3 different values"),
        ({"a": [0, 1, 1]}, ["--split=random:0.5,0.5"], "--split does not go with it"),
        ({"a": [0, 1, 1]}, ["--format=criteo"], "not at format criteo"),
        ({"a": []}, [], "has no rows to look at"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(tmp_path, capsys, columns, flags, message):
    source = write_csv(tmp_path / "a.csv", columns)
    paths = [f"--input={source}", f"--output={tmp_path / 's.toml'}"]
    assert cli.main(["convert", "--infer", *paths, *flags]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [source]


def test_an_existing_spec_is_not_overwritten(tmp_path):
    (tmp_path / "s.toml").write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        infer(write_csv(tmp_path / "a.csv"), tmp_path / "s.toml", progress=False)
