"""Lists as others write them, and what the conversion says of their lengths."""

import logging

import pyarrow as pa
import pytest

from ctr_trainer.data.convert import convert, format_summary
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from tests.data.test_kinds import encode, hashed


@pytest.mark.parametrize(
    ("text", "separator", "values"),
    [
        ("[1, 2]", None, ["1", "2"]),
        ("[]", None, []),
        ("['a', \"b c\"]", None, ["a", "b c"]),
        ("(7,)", None, ["7"]),
        ("{1;2}", ";", ["1", "2"]),
        ("[ 1  20\n 3]", " ", ["1", "20", "3"]),
        (" 5 ", None, ["5"]),
        ("é", None, ["é"]),
    ],
)
def test_brackets_quotes_and_blanks_are_taken_off(text, separator, values):
    feature = {"combiner": "none", "max_length": 5, "brackets": True} | ({"separator": separator} if separator else {})
    assert encode(feature, [text, None])["f"].to_pylist() == [hashed(*values), []]


def test_a_list_in_brackets_may_have_weights():
    table = encode({"combiner": "sum", "brackets": True, "weight_separator": ":"}, ["['a:2', 'b']"])
    assert table["f"].to_pylist() == [hashed("a", "b")] and table["weights:f"].to_pylist() == [[2, 1]]


def _spec(**history):
    history = {"name": "history", "slot": "item", "dim": 2, "combiner": "none", "max_length": 2, **history}
    return FeatureSpec.from_dict(
        {"name": "lists", "label": {"column": "y"}, "sparse": [{"name": "item", "dim": 2}, history]}
    )


def _convert(tmp_path, histories, **options):
    lines = [f'{number % 2},{number},"{history}"\n' for number, history in enumerate(histories)]
    (tmp_path / "a.csv").write_text("y,item,history\n" + "".join(lines))
    return convert("csv", tmp_path / "a.csv", tmp_path / "out", _spec(**options), progress=False)


def test_the_summary_says_how_long_lists_are(tmp_path, caplog):
    summary = _convert(tmp_path, ["1|2|3", "", "4", "5|6|7|8|9", "1|2"])
    assert summary["lists"] == {"history": {"mean": 2.2, "largest": 5, "empty": 0.2, "cut": 0.4}}
    lines = [line.split() for line in format_summary(summary).splitlines()]
    assert ["list", "mean", "length", "largest", "empty", "cut"] in lines
    assert ["history", "2.20", "5", "20.0%", "40.0%"] in lines
    assert not caplog.records


@pytest.mark.parametrize(
    ("value", "cure"),
    [
        ("[1, 2]", {"brackets": True}),
        ("['1', '2']", {"brackets": True}),
        ("[1 2]", {"brackets": True, "separator": " "}),
        ("1 2", {"separator": " "}),
        ("1 | 2", {"brackets": True, "separator": "|"}),
    ],
)
def test_a_list_that_becomes_one_key_is_warned_of_with_its_cure(tmp_path, caplog, value, cure):
    with caplog.at_level(logging.WARNING):
        _convert(tmp_path, [value] * 30)
    warning = caplog.records[0].getMessage()
    assert "list feature 'history', column 'history'" in warning
    assert "brackets = true" in warning and 'separator = " "' in warning
    caplog.clear()
    (tmp_path / "cured").mkdir()
    assert _convert(tmp_path / "cured", [value] * 30, **cure)["lists"]["history"]["mean"] == 2
    assert not caplog.records
    batch = next(iter(BatchReader(tmp_path / "cured" / "out", 30, shuffle=False, epochs=1)))
    assert batch.bags["history"].values[:2].tolist() == keys("item", pa.array(["1", "2"])).tolist()


def test_lists_that_all_have_one_value_are_warned_of(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        _convert(tmp_path, ["a;b"] * 25 + [""])
    (record,) = caplog.records
    assert "each of its 25 lists has one value, so '|' may not be the values' separator" in record.getMessage()


@pytest.mark.parametrize("value", ["Sci-Fi", "Film Noir", "Toy (1995)", "New York", "a-1"])
def test_a_value_that_is_one_is_not_warned_of(value, caplog):
    encode({"combiner": "mean"}, [f"{value}|other"])
    assert not caplog.records
