"""Columns whose values are in a file, by the values of another column."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data.lookups import joined
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.features.spec_changes import contradictions
from ctr_trainer.system.messages.errors import UserError


def _spec(path, features, **lookup):
    values = {"name": "s", "label": {"column": "y"}, "lookup": [{"name": "price", "file": path.name, "key": "item"}]}
    values["lookup"][0] |= lookup
    return FeatureSpec.from_dict(values | features, directory=path.parent)


NUMBERS = {"dense": [{"name": "price"}]}
TEXTS = {"sparse": [{"name": "price", "dim": 2}]}
VECTORS = {"dense": [{"name": "price2"}, {"name": "price1"}]}


@pytest.mark.parametrize(
    ("features", "values"), [(NUMBERS, [2.5, None, None, None, 1.0]), (TEXTS, [b"2.5", None, None, None, b"1"])]
)
def test_a_key_without_a_value_has_a_missing_one(tmp_path, features, values):
    (tmp_path / "items.csv").write_text("price,item\n1,a\n2.5,b\n,no price\n")
    spec = _spec(tmp_path / "items.csv", features)
    for keys in (pa.array(["b", "no price", None, "new", "a"]), pa.array([b"b", b"no price", b"", b"new", b"a"])):
        for table in (pa.table({"item": keys}), pa.table({"item": keys.dictionary_encode(), "price": [0] * 5})):
            found = joined(table, spec)["price"].to_pylist()
            assert [None if each != each else each for each in found] == values


def test_a_vector_becomes_numbered_columns(tmp_path):
    table = pa.table({"id": [7, -1], "price": [[1.5, 2], [3, 4]]})
    pq.write_table(table, tmp_path / "items.parquet")
    spec = _spec(tmp_path / "items.parquet", VECTORS, file_key="id", length=2)
    found = joined(pa.table({"item": [-1, 7, 8]}), spec)
    assert found["price1"].to_pylist()[:2] == [3, 1.5] and found["price2"].to_pylist()[:2] == [4, 2]
    assert all(math.isnan(found[name][2].as_py()) for name in ("price1", "price2"))


@pytest.mark.parametrize(
    ("text", "features", "more", "message"),
    [
        ("item,price\na,1\nb,2\na,3\n", NUMBERS, {}, "row 3, column 'item': 'a' is in row 1, too; keep one"),
        ("item,price\na,1\n,2\n", NUMBERS, {}, "row 2, column 'item': None is not a key"),
        ("item,price\na,1\nb,cheap\n", NUMBERS, {}, "row 2, column 'price': 'cheap' is not a finite number"),
        ("item,cost\na,1\n", NUMBERS, {}, "no column 'price'; the columns are item, cost"),
        ("item,price\n", NUMBERS, {}, "it has no rows"),
        ("item,price\na,1\nb\n", NUMBERS, {}, "Expected 2 columns.*; expected Parquet, or comma-separated"),
        ("item,price\na,1\n", VECTORS, {"length": 2}, "row 1, column 'price': '1' is not a list of 2 finite"),
        ("PAR1", NUMBERS, {}, "; expected Parquet"),
        (
            [[1.0, 2], [3.0]],
            VECTORS,
            {"length": 2},
            r"row 2, column 'price': \[3.0\] is not a list of 2 finite numbers",
        ),
        ([[1.0, 2], [3.0, math.nan]], VECTORS, {"length": 2}, r"row 2, column 'price': \[3.0, nan\] is not a list"),
        ([[1.0, 2], None], VECTORS, {"length": 2}, "row 2, column 'price': None is not a list of 2"),
        ([[1.0, 2], [3.0]], NUMBERS, {}, "row 1, column 'price': .*is not one value for"),
    ],
)
def test_a_bad_file_is_refused_with_its_row(tmp_path, text, features, more, message):
    path = tmp_path / "items"
    if isinstance(text, str):
        path.write_text(text)
    else:
        pq.write_table(pa.table({"item": ["a", "b"], "price": text}), path)
    spec = _spec(path, features, **more)
    with pytest.raises(UserError, match=f"items, the file of .*lookup.* 'price': .*{message}"):
        joined(pa.table({"item": ["a"]}), spec)


def test_another_file_is_another_spec_and_is_not_read(tmp_path):
    path = tmp_path / "items.csv"
    path.write_text("item,price\na,1\n")
    first = _spec(path, NUMBERS)
    assert FeatureSpec.from_dict(json.loads(json.dumps(first.to_dict()))) == first
    path.write_text("item,price\na,1000\n")
    second = _spec(path, NUMBERS)
    hashes = [spec.lookup[0].sha256[:12] for spec in (first, second)]
    with pytest.raises(UserError, match=f"SHA-256 begins with {hashes[1]}, and the feature spec .* has {hashes[0]}"):
        joined(pa.table({"item": ["a"]}), first)
    assert contradictions(first, second) == f"'[[lookup]] price': sha256 {hashes[1]}, not {hashes[0]}"
    path.unlink()
    with pytest.raises(UserError, match="items.csv, the file of .*lookup.* 'price': .*No such file"):
        joined(pa.table({"item": ["a"]}), first)
    with pytest.raises(UserError, match="feature spec: .*items.csv, the file of .*No such file"):
        _spec(path, NUMBERS)
    path.mkdir()  # As Spark writes it.
    with pytest.raises(UserError, match="items.csv, the file of .*Is a directory: .*; put a readable copy"):
        joined(pa.table({"item": ["a"]}), first)
    with pytest.raises(UserError, match="feature spec: .*items.csv, the file of .*Is a directory"):
        _spec(path, NUMBERS)


@pytest.mark.parametrize(
    ("lookup", "more", "message"),
    [
        ({"name": "y"}, {}, "'y' is a column of .*lookup.*, which only features read"),
        ({"name": "item"}, {}, "'item' is a column of .*lookup"),
        ({}, {"ids": ["price"]}, "'price' is a column of .*lookup"),
        ({}, {"sparse": [{"name": "item", "dim": 2, "combiner": "sum"}]}, "'price': key 'item' is a list"),
        ({"length": 2}, {"sparse": [{"name": "price2", "dim": 2}]}, "'price' has a length, so its columns are numbers"),
        ({"length": -1}, {}, "length -1 is negative"),
        ({"values": "x"}, {}, "unknown key 'values'"),
    ],
)
def test_a_spec_with_a_wrong_lookup_is_refused(tmp_path, lookup, more, message):
    (tmp_path / "items.csv").write_text("item,price\na,1\n")
    with pytest.raises(UserError, match=message):
        _spec(tmp_path / "items.csv", NUMBERS | more, **lookup)
