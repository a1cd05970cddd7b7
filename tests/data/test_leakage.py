"""Columns that leak the label are named."""

import logging
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer import cli
from ctr_trainer.data.conversion import leakage
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.conversion.converted_cache import converted
from ctr_trainer.data.conversion.infer import infer
from ctr_trainer.data.parquet import ForeignParquet, scan
from ctr_trainer.data.source import ConvertedData
from ctr_trainer.features.spec import FeatureSpec
from tests.data.test_infer import write_csv

ROWS = 4000
RNG = np.random.default_rng(0)
CLICKS = RNG.random(ROWS) < 0.2
NOISE = RNG.normal(size=ROWS)
COLUMNS = {
    "click": CLICKS.astype(int),
    "price": np.round(RNG.lognormal(0, 1, ROWS), 3),
    "city": RNG.choice(["Bern", "Basel", "Genf"], ROWS),
    "user": [f"u{n}" for n in RNG.integers(0, 1500, ROWS)],
    # A good feature, whose own AUC is about 0.9.
    "good": np.round(NOISE + 1.8 * CLICKS, 4),
}
LEAKS = {
    # Filled for a third of the clicks and for nothing else.
    "paid": (np.where(CLICKS & (RNG.random(ROWS) < 0.3), np.round(RNG.lognormal(3, 1, ROWS), 2), ""), "is filled only"),
    "agent": (np.where(CLICKS & (RNG.random(ROWS) < 0.3), RNG.choice(["a", "b", "c"], ROWS), ""), "is filled only"),
    # Missing for half of the rows without a click, and only for these.
    "landing": (np.where(~CLICKS & (RNG.random(ROWS) < 0.5), "", RNG.choice(["x", "y"], ROWS)), "is missing only"),
    "dwell": (np.round(NOISE + 8 * CLICKS, 4), "alone has an AUC of 0.99|alone has an AUC of 1.0"),
    # One value goes only with clicks, and the other values go with both labels.
    "bought": (np.where(CLICKS & (RNG.random(ROWS) < 0.2), 1, 0), "has a value (2 are distinct) that goes only with"),
    "event": (
        np.where(CLICKS & (RNG.random(ROWS) < 0.2), "order", RNG.choice(["view", "cart", "back"], ROWS)),
        "that goes only with the label 1",
    ),
    "unread": (
        np.where(~CLICKS & (RNG.random(ROWS) < 0.3), "lost", RNG.choice(["a", "b"], ROWS)),
        "that goes only with the label 0",
    ),
    "orders": (np.where(CLICKS & (RNG.random(ROWS) < 0.2), RNG.integers(1, 4, ROWS), 0), "has the value"),
    "sum": (
        np.where(CLICKS & (RNG.random(ROWS) < 0.2), np.round(RNG.lognormal(3, 1, ROWS), 2), 0),
        "has another value than its most frequent one only where the label is 1",
    ),
    "seen": (
        [
            "|".join([a, b] + ["order"] * int(c))
            for a, b, c in zip(*RNG.choice(["x", "y", "z"], (2, ROWS)), CLICKS & (RNG.random(ROWS) < 0.2), strict=True)
        ],
        "that goes only with the label 1",
    ),
    "state": (np.where(CLICKS, RNG.choice(["done", "sent"], ROWS), RNG.choice(["new", "open"], ROWS)), "an AUC of 1.0"),
}
SPEC = {
    "name": "leaks",
    "label": {"column": "click"},
    "dense": [{"name": name} for name in ("price", "good")],
    "sparse": [{"name": name, "dim": 4} for name in ("city", "user")],
}


def spec_with(*names):
    """The feature spec with some of the leaking columns."""
    dense = [name for name in names if name in ("paid", "dwell", "orders", "sum")]
    sparse = [{"name": name, "dim": 4} for name in names if name not in dense]
    lists = {"combiner": "sum", "separator": "|"}
    sparse = [feature | (lists if feature["name"] == "seen" else {}) for feature in sparse]
    dense = [*SPEC["dense"], *({"name": name} for name in dense)]
    return FeatureSpec.from_dict(SPEC | {"dense": dense, "sparse": [*SPEC["sparse"], *sparse]})


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.name == leakage.__name__]


def test_columns_that_leak_the_label_are_named_by_convert_and_not_in_a_draft(tmp_path, caplog):
    source = write_csv(tmp_path / "a.csv", COLUMNS | {name: values for name, (values, _) in LEAKS.items()})
    with caplog.at_level(logging.WARNING):
        convert("csv", source, tmp_path / "out", spec_with(*LEAKS), split="random:0.8,0.2", progress=False)
    found = {re.search(r"column '(\w+)'", said).group(1): said for said in warnings(caplog)}
    assert set(found) == set(LEAKS)  # None of the other columns is suspicious.
    for name, (_, why) in LEAKS.items():
        assert any(each in found[name] for each in why.split("|")), found[name]
        assert f"remove feature {name!r} from the feature spec" in found[name]
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        spec = infer(source, tmp_path / "s.toml", label="click")
    assert {feature.column for feature in (*spec.dense, *spec.sparse)} == {"price", "good", "city", "user"}
    for name in LEAKS:
        assert f"# left out: {name}: " in (tmp_path / "s.toml").read_text()
        assert re.search(f"column '{name}' .* leaks the label", caplog.text)


def test_values_that_hardly_ever_have_a_label_make_no_column_suspicious(tmp_path, caplog):
    """As in Adult, where an age of 17 never has a high income, but ages of 18 and 19 hardly ever have one, either."""
    ages = RNG.integers(17, 60, 40_000)
    rates = np.where(ages == 17, 0, np.where(ages < 20, 0.004, 0.3))
    columns = {"click": (RNG.random(40_000) < rates).astype(int), "rank": ages, "city": [f"c{age}" for age in ages]}
    infer(write_csv(tmp_path / "a.csv", columns), tmp_path / "s.toml", label="click")
    assert "leaks the label" not in caplog.text


def test_training_on_parquet_names_a_column_that_gives_the_label_away(tmp_path, caplog):
    columns = {"click": COLUMNS["click"], "good": COLUMNS["good"], "bought": LEAKS["bought"][0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    (tmp_path / "s.toml").write_text(
        'name = "s"\n[label]\ncolumn = "click"\n[[dense]]\nname = "good"\n[[sparse]]\nname = "bought"\ndim = 4\n'
    )
    flags = [f"--train_data={tmp_path / 'a.parquet'}", f"--feature_spec={tmp_path / 's.toml'}", "--epochs=1"]
    flags += [f"--model_dir={tmp_path / 'model'}", "--model=lr", "--batch_size=200", "--threads=1"]
    assert cli.main(["train", *flags]) == 0
    (said,) = warnings(caplog)
    assert "column 'bought'" in said and "a.parquet" in said


def test_ids_whose_type_differs_by_file_hide_no_leak(tmp_path, caplog):
    table = pa.table({"click": COLUMNS["click"], "bought": LEAKS["bought"][0]})
    for number, kind in enumerate((pa.int64(), pa.string())):
        ids = pa.array(range(ROWS)).cast(kind)
        pq.write_table(table.append_column("row", ids), tmp_path / f"{number}.parquet")
    sparse = [{"name": "bought", "dim": 4}]
    spec = FeatureSpec.from_dict(SPEC | {"dense": [], "sparse": sparse, "ids": ["row"]})
    leakage.warn_of_leaks(ForeignParquet(scan(tmp_path, spec), spec, {}))
    (said,) = warnings(caplog)
    assert "column 'bought'" in said


def test_rare_positives_make_no_column_suspicious(tmp_path, caplog):
    """With few clicks nearly every value has none, and nearly every group of rows is nearly pure."""
    rng = np.random.default_rng(1)
    columns = {
        "click": (rng.random(50_000) < 0.002).astype(int),
        "city": rng.choice(["Bern", "Basel", ""], 50_000, p=[0.5, 0.3, 0.2]),
        "user": [f"u{n}" for n in rng.integers(0, 20_000, 50_000)],
        "price": np.where(rng.random(50_000) < 0.3, "", np.round(rng.lognormal(0, 1, 50_000), 3).astype(str)),
        "good": np.round(rng.normal(size=50_000), 4),
    }
    source = write_csv(tmp_path / "a.csv", columns)
    convert("csv", source, tmp_path / "out", FeatureSpec.from_dict(SPEC), progress=False)
    assert not warnings(caplog)


@pytest.mark.parametrize("name", ["criteo/train_head.tsv", "adult/adult.data"])
def test_real_logs_make_no_column_suspicious(tmp_path, caplog, real_data, name):
    label = "c1" if "criteo" in name else "c15"
    spec = infer(real_data / name, tmp_path / "s.toml", label=label)
    convert("csv", real_data / name, tmp_path / "out", spec, progress=False)
    assert "away" not in caplog.text and not warnings(caplog)


@pytest.mark.parametrize(("name", "warns"), [("dwell", True), ("good", False)])
def test_an_evaluation_of_a_perfect_model_says_that_a_feature_leaks_the_label(tmp_path, caplog, name, warns):
    columns = {"click": COLUMNS["click"], "dwell": LEAKS["dwell"][0], "good": COLUMNS["good"]}
    spec = FeatureSpec.from_dict({"name": "one", "label": {"column": "click"}, "dense": [{"name": name}]})
    convert("csv", write_csv(tmp_path / "a.csv", columns), tmp_path / "data", spec, progress=False)
    flags = [f"--model_dir={tmp_path / 'model'}", "--model=lr", "--batch_size=200", "--threads=1"]
    assert cli.main(["train", f"--train_data={tmp_path / 'data'}", *flags, "--epochs=2", "--learning_rate=0.1"]) == 0
    assert cli.main(["evaluate", f"--eval_data={tmp_path / 'data'}", *flags]) == 0
    said = [record.getMessage() for record in caplog.records if "a feature leaks the label" in record.getMessage()]
    assert len(said) == warns and all(message.startswith("auc = ") for message in said)


def test_a_conversion_on_first_use_names_such_a_column_too(tmp_path, caplog):
    spec, source = spec_with("paid"), write_csv(tmp_path / "a.csv", COLUMNS | {"paid": LEAKS["paid"][0]})
    for conversions in (1, 1):  # The second call finds the conversion, and says nothing more.
        converted(str(source), "csv", spec, tmp_path / "cache")
        assert len(warnings(caplog)) == conversions
    assert "column 'paid'" in warnings(caplog)[0] and str(tmp_path / "cache") in warnings(caplog)[0]


def test_data_without_labels_is_not_read(tmp_path, monkeypatch):
    source, spec = write_csv(tmp_path / "a.csv", COLUMNS | {"paid": LEAKS["paid"][0]}), spec_with("paid")
    monkeypatch.setattr(ConvertedData, "read", lambda *_: pytest.fail("a row group was read"))
    convert("csv", source, tmp_path / "data", spec.without_labels(), progress=False)
