"""Each kind of feature and label from its source to batches; lists as others write them."""

import json
import logging

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from ctr_trainer.commands.convert import format_summary
from ctr_trainer.data.batch import batch_of
from ctr_trainer.data.blocks import BadRows, Chunk
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.data.encode import Encoder
from ctr_trainer.data.observations import Observations
from ctr_trainer.data.parquet import ForeignParquet, scan
from ctr_trainer.data.reader import BatchReader
from ctr_trainer.features.hashing import keys
from ctr_trainer.features.spec import FeatureSpec
from ctr_trainer.live.stream.messages import MessageDecoder
from ctr_trainer.live.stream.source import Message
from ctr_trainer.system.messages.errors import UserError
from tests import small

BASE = {"name": "kinds", "label": {"column": "y"}}


def encode(feature, column, bad_rows=0):
    """Returns the encoded table of a spec of one sparse feature `f` and a column of it."""
    values = {**BASE, "sparse": [{"name": "f", "dim": 2, **feature}]}
    return _encoded(values, {"f": column}, BadRows(bad_rows))


def _encoded(values, columns, bad_rows):
    spec, (column,) = FeatureSpec.from_dict(values), columns.values()
    table, found = pa.table({**columns, "y": [1] * len(column)}), []
    encoded = Encoder(spec).encode(Chunk(table, "a.csv", lambda row: row + 1), found, Observations(spec))
    bad_rows.add(found)
    return encoded


def hashed(*values):
    return keys("f", pa.array(values, pa.string())).tolist()


def test_a_sequence_keeps_its_last_values_in_order():
    table = encode({"combiner": "none", "max_length": 2}, ["a|b||c", "a", None, ""])
    assert table["f"].to_pylist() == [hashed("b", "c"), hashed("a"), [], []]


@pytest.mark.parametrize(("keep", "kept"), [(None, "ab"), ("first", "ab"), ("last", "bc")])
def test_a_bag_keeps_the_first_or_the_last(keep, kept):
    feature = {"combiner": "sum", "max_length": 2} | ({"keep": keep} if keep else {})
    assert encode(feature, ["a|b|c"])["f"].to_pylist() == [hashed(*kept)]


@pytest.mark.parametrize(("missing", "found"), [("zero", [0, 0]), ("own", hashed("", None)), (None, hashed("", None))])
def test_a_missing_single_value_has_a_row_unless_told_otherwise(missing, found):
    feature = {} if missing is None else {"missing": missing}
    assert encode(feature, ["", None, "a"])["f"].to_pylist() == found + hashed("a")


def test_an_empty_bag_may_have_a_row_of_its_own():
    feature = {"combiner": "mean", "missing": "own", "weight_separator": ":"}
    table = encode(feature, ["", "a:2", None, "||", "b|c:3"])
    own = hashed("")
    assert table["f"].to_pylist() == [own, hashed("a"), own, own, hashed("b", "c")]
    assert table["weights:f"].to_pylist() == [[1], [2], [1], [1], [1, 3]]


def test_weights_stand_behind_the_last_separator_and_are_1_without():
    table = encode({"combiner": "sum", "weight_separator": ":"}, ["news:0.5|sport:2", "a:b:3|c", ":4", None])
    assert table["f"].to_pylist() == [hashed("news", "sport"), hashed("a:b", "c"), [], []]
    assert table["weights:f"].to_pylist() == [[0.5, 2], [3, 1], [], []]


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ({"brackets": True}, ["['?']", "['?', 'a']", "['', '?']", "[]"]),
        ({"weight_separator": ":"}, ["?|", "?|a:2", "|?", "||"]),
        ({}, [["?"], ["?", "a"], [None, "?", ""], []]),
    ],
    ids=["brackets", "weights", "lists"],
)
def test_a_null_value_that_is_the_only_value_of_a_list_is_none(form, texts):
    feature = {"name": "f", "dim": 2, "combiner": "sum", **form}
    found = _encoded({**BASE, "csv": {"null_values": ["", "?"]}, "sparse": [feature]}, {"f": texts}, BadRows())
    assert found["f"].to_pylist() == [[], hashed("?", "a"), [], []]


@pytest.mark.parametrize("value", ["a:1|b:x", "a:", "a:inf", "a:nan"])
def test_a_bad_weight_is_a_bad_row_that_is_named(value):
    feature = {"combiner": "sum", "weight_separator": ":"}
    with pytest.raises(UserError) as error:
        encode(feature, ["a:1", value])
    expected = "values with finite weights, such as 'a:0.5', for feature 'f'"
    for part in ("a.csv, line 2, column 'f'", repr(value), expected):
        assert part in str(error.value)
    assert len(encode(feature, ["a:1", value, value], bad_rows=2)) == 1


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.large_string()), pa.list_(pa.binary())])
def test_lists_are_taken_as_they_are(kind):
    source = pa.chunked_array([pa.array([["a|b", "", None, "c"], None], kind), pa.array([[], ["a"]], kind)])
    assert encode({"combiner": "sum"}, source)["f"].to_pylist() == [hashed("a|b", "c"), [], [], hashed("a")]


def test_lists_of_numbers_and_single_numbers_hash_as_their_digits():
    assert encode({"combiner": "sum"}, pa.array([[1, -2], None]))["f"].to_pylist() == [hashed("1", "-2"), []]
    assert encode({"combiner": "sum"}, pa.array([12, None]))["f"].to_pylist() == [hashed("12"), []]
    fixed = pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2))
    assert encode({"combiner": "sum"}, fixed)["f"].to_pylist() == [hashed("1", "2"), hashed("3", "4")]
    coded = pa.array([["a"], ["b", "a"]], pa.list_(pa.dictionary(pa.int32(), pa.string())))
    assert encode({"combiner": "sum"}, coded)["f"].to_pylist() == [hashed("a"), hashed("b", "a")]


def test_a_number_that_is_none_names_its_feature():
    with pytest.raises(UserError, match="line 2, column 'f': 'x' is not a finite number, for feature 'f'"):
        encode({"buckets": [1.0]}, ["1", "x"])


def test_quantiles_are_fitted_to_the_training_part_and_read_by_every_part(tmp_path):
    spec = FeatureSpec.from_dict(BASE | {"sparse": [{"name": "x", "dim": 2, "quantiles": 2}]})
    (tmp_path / "a.csv").write_text("y,x\n" + "".join(f"{i % 2},{i if i != 3 else ''}\n" for i in range(10)))
    options = {"split": "time:0.5,0.5:x", "max_bad_rows": 1, "progress": False}
    summary = convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, **options)
    # Without the row that the split cannot place the training part has 0, 1, 2, 4.
    assert open_dataset(tmp_path / "out" / "test").statistics == {"x": {"boundaries": [2.0]}}
    zero, one = keys("x", pa.array(["0", "1"])).tolist()
    parts = {"train": [zero, zero, one, one], "test": [one] * 5}
    for part, wanted in parts.items():
        (batch,) = BatchReader(tmp_path / "out" / part, len(wanted), shuffle=False, epochs=1)
        assert batch.keys["dim2"][:, 0].tolist() == wanted
    other = BatchReader(tmp_path / "out" / "test", 5, shuffle=False, epochs=1).with_statistics(
        {"x": {"boundaries": [6.5]}}
    )
    assert next(iter(other)).keys["dim2"][:, 0].tolist() == [zero, zero, one, one, one]
    assert "2 buckets, cut at 2" in format_summary(summary)


def test_clipped_values_are_what_statistics_see(tmp_path):
    spec = FeatureSpec.from_dict(BASE | {"dense": [{"name": "x", "clip": [0, 10], "transform": "standardize"}]})
    (tmp_path / "a.csv").write_text("y,x\n1,-5\n0,1000\n1,5\n")
    convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)
    figures = open_dataset(tmp_path / "out").statistics["x"]
    assert (figures["mean"], figures["min"], figures["max"]) == (5, 0, 10)
    assert pq.read_table(tmp_path / "out" / "part-00000.parquet")["x"].to_pylist() == [-5, 1000, 5]


def test_pieces_are_fitted_to_the_clipped_values_of_the_training_part(tmp_path):
    pieces = {"name": "x", "clip": [0, 8], "transform": "piecewise_linear", "pieces": 2}
    spec = FeatureSpec.from_dict(BASE | {"dense": [pieces]})
    assert FeatureSpec.from_dict(spec.to_dict()) == spec
    (tmp_path / "a.csv").write_text("y,t,x\n1,0,-5\n0,1,\n1,2,6\n1,3,1000\n1,4,2\n0,5,1\n1,6,7\n")
    summary = convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, split="time:0.72,0.28:t", progress=False)
    for part in ("train", "test"):  # The training part has 0, 2, 6 and 8, half of them below 6.
        figures = open_dataset(tmp_path / "out" / part).statistics["x"]
        assert (figures["min"], figures["boundaries"], figures["max"], figures["count"]) == (0, [6], 8, 4)
    assert "2 pieces, cut at 6" in format_summary(summary)


def test_several_labels_are_columns_of_a_matrix(tmp_path):
    data = small.make(tmp_path, rows=40, labels=2)
    info = open_dataset(data)
    assert [(label.name, label.weight) for label in info.spec.labels] == [("clicked", 1.0), ("bought", 0.5)]
    assert info.spec == FeatureSpec.from_dict(info.spec.to_dict()) == FeatureSpec.load(tmp_path / "spec.toml")
    batches = list(BatchReader(data, 16, epochs=1))
    labels = np.concatenate([batch.labels[: batch.size] for batch in batches])
    assert labels.shape == (40, 2) and batches[-1].labels.shape == (16, 2)
    assert (labels[:, 1] <= labels[:, 0]).all() and 0 < labels[:, 1].sum() < labels[:, 0].sum()
    assert info.label_means == pytest.approx({"clicked": labels[:, 0].mean(), "bought": labels[:, 1].mean()})
    text = format_summary({"output": "out", "seconds": 1, "bad_rows": 0, "parts": {"all": info}, "lists": {}})
    assert "clicked mean" in text and "bought mean" in text


def test_a_row_that_lacks_one_of_its_labels_is_bad(tmp_path):
    spec = FeatureSpec.from_dict(
        {"name": "l", "label": [{"column": "a"}, {"column": "b"}], "sparse": [{"name": "f", "dim": 2}]}
    )
    (tmp_path / "a.csv").write_text("a,b,f\n1,0,x\n1,,y\n")
    with pytest.raises(UserError, match="line 3, column 'b': None is not a label of 0 or 1, for the label 'b'"):
        convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)


def test_shuffled_rows_keep_their_values_and_weights(tmp_path):
    data = small.make(tmp_path, rows=70)
    readers = [BatchReader(data, 16, epochs=1, shuffle=shuffle) for shuffle in (False, True)]
    rows = []
    for reader in readers:
        found = {}
        for batch in reader:
            for b in range(batch.size):
                of_row = {}
                for name, bag in batch.bags.items():
                    part = slice(bag.splits[b], bag.splits[b + 1])
                    of_row[name] = bag.values[part].tolist(), bag.weights is not None and bag.weights[part].tolist()
                found[batch.ids["row"][b]] = of_row
        rows.append(found)
    assert rows[0] == rows[1] and len(rows[0]) == 70
    assert any(weights not in ([], [1.0]) for _, weights in (row["topics"] for row in rows[0].values()))
    assert max(len(values) for values, _ in (row["history"] for row in rows[0].values())) == 4


def dense(values):
    """Returns the feature of a column, float32, and the number of bad rows."""
    bad_rows = BadRows(10)
    found = _encoded({**BASE, "dense": [{"name": "x"}]}, {"x": values}, bad_rows)
    return found["x"].to_numpy(), bad_rows.count


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.int32()])
def test_whole_numbers_beyond_float32_are_rounded_to_the_nearest_even(kind):
    numbers = [2**24 - 1, 2**24 + 1, 2**24 + 3, None, 2**31 - 65, 2**31 - 64]
    numbers += [] if kind == pa.int32() else [2**53 + 2**29 + 1, 2**63 - 1]
    numbers += [2**64 - 1, 2**63 + 2**39] if kind == pa.uint64() else [-(2**24) - 1]
    found, bad = dense(pa.array(numbers, kind))
    as_text, _ = dense(pa.array([None if n is None else str(n) for n in numbers]))
    assert found[:4].tolist()[:3] == [2**24 - 1, 2**24, 2**24 + 4] and np.isnan(found[3]) and bad == 0
    assert np.array_equal(found, as_text, equal_nan=True)


def test_numbers_in_unusual_forms_are_cast_and_other_texts_are_bad():
    rng = np.random.default_rng(0)
    whole = rng.integers(2**24, 2**60, 2000)
    found, _ = dense(pa.array(whole))
    texts = [*map(str, rng.random(2000)), "x", "1e", "inf", "7.", "-", "1e3", None]
    of_texts, bad = dense(pa.array(texts))
    assert np.array_equal(found, whole.astype(np.float32))
    assert bad == 4 and of_texts[-3:-1].tolist() == [7, 1000] and np.isnan(of_texts[-1])


def labelled(tmp_path, labels, positive, **csv):
    label = {"column": "y", "positive": positive} if positive else {"column": "y"}
    spec = FeatureSpec.from_dict({"name": "l", "label": label, "sparse": [{"name": "c", "dim": 2}], "csv": csv})
    (tmp_path / "a.csv").write_text("y,c\n" + "".join(f"{label},a\n" for label in labels))
    return spec, lambda: convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)["parts"]["all"]


def test_a_positive_that_never_occurs_is_an_error_with_what_occurs(tmp_path, caplog):
    spec, run = labelled(tmp_path, ["Yes", "no", "Yes"], "yes")
    with pytest.raises(
        UserError, match=r"column 'y': `positive = 'yes'` never occurs.*the column has the values 'Yes', 'no'\."
    ):
        run()
    pq.write_table(pa.table({"y": ["Yes", "no"], "c": ["a", "b"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="`positive = 'yes'` never occurs.*the column has the values 'Yes', 'no'"):
        scan(tmp_path / "a.parquet", spec)
    scan(tmp_path / "a.parquet", spec.without_labels())
    _, run = labelled(tmp_path, ["no", "no"], "yes")
    assert run().label_mean == 0  # an hour without a click is no mistake
    assert "ignore this if all rows are negative" in caplog.text


def test_a_label_of_text_names_positive(tmp_path):
    _, run = labelled(tmp_path, ["yes", "no"], None)
    with pytest.raises(UserError, match=r"'yes' is not a label of 0 or 1, for the label; .*`positive`.*`threshold`"):
        run()


@pytest.mark.parametrize("combiner", ["sum", None])
def test_a_list_of_lists_in_a_file_says_what_to_do(tmp_path, combiner):
    feature = {"name": "c", "dim": 2} | ({"combiner": combiner} if combiner else {})
    pq.write_table(pa.table({"y": [1], "c": [[["a"]]]}), tmp_path / "a.parquet")
    spec = FeatureSpec.from_dict({**BASE, "sparse": [feature]})
    with pytest.raises(UserError, match="a.parquet: column 'c' has type list.*flatten the column"):
        convert("parquet", tmp_path / "a.parquet", tmp_path / "out", spec, progress=False)


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
    assert "each of its 25 lists has one value, so '|' may not be the separator of the values" in record.getMessage()


@pytest.mark.parametrize("value", ["Sci-Fi", "Film Noir", "Toy (1995)", "New York", "a-1"])
def test_a_value_that_is_one_is_not_warned_of(value, caplog):
    encode({"combiner": "mean"}, [f"{value}|other"])
    assert not caplog.records


def test_a_cross_is_the_same_in_all_sources_and_is_missing_with_a_column(tmp_path):
    cells = ["a", "b", "", "a_b", "x" * 70_000]
    rows = [{"f": one, "g": other, "n": number} for one in cells for other in cells for number in (None, 1, 5)]
    sparse = [{"name": "f", "dim": 2}, {"name": "g", "dim": 2, "missing": "zero"}]
    sparse.append({"name": "level", "column": "n", "dim": 2, "buckets": [3]})
    crosses = [{"columns": ["f", "g"], "dim": 2}, {"columns": ["n", "g", "f"], "dim": 4}]
    spec = FeatureSpec.from_dict({**BASE, "sparse": sparse, "cross": crosses})
    table = pa.table({name: [row[name] for row in rows] for name in "fgn"}).append_column("y", [[1] * len(rows)])
    pq.write_table(table, tmp_path / "a.parquet")
    pa.csv.write_csv(table, tmp_path / "a.csv")
    convert("csv", tmp_path / "a.csv", tmp_path / "out", spec, progress=False)
    layout = scan(str(tmp_path / "a.parquet"), spec)
    messages = [Message(0, at, 1.0, json.dumps({**row, "y": 1}).encode()) for at, row in enumerate(rows)]
    batches = [next(iter(BatchReader(tmp_path / "out", len(rows), shuffle=False)))]
    batches += BatchReader(ForeignParquet(layout, spec, {}), len(rows), shuffle=False, epochs=1)
    batches.append(batch_of(MessageDecoder(spec, {}, "kafka topic clicks").decode(messages).rows, len(rows)))
    for batch in batches:
        pair, three = batch.keys["dim2"][:, 3], batch.keys["dim4"][:, 0]
        np.testing.assert_array_equal(pair, batches[0].keys["dim2"][:, 3])
        np.testing.assert_array_equal(three, batches[0].keys["dim4"][:, 0])
        assert [key == 0 for key in pair] == [not row["g"] for row in rows]
        assert [key == 0 for key in three] == [not row["g"] or row["n"] is None for row in rows]
    assert len({*pair.tolist()}) == 1 + 5 * 4 and len({*three.tolist()}) == 1 + 5 * 4 * 2
