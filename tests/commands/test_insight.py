"""What the commands say about a model's columns: their importance, the metrics by their values, and what has moved."""

import itertools
import json
import runpy
import types

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr
from sklearn.metrics import log_loss, roc_auc_score

import ctr_trainer as ctr
from ctr_trainer import cli
from ctr_trainer.data import moved
from ctr_trainer.data.bins import Bins
from ctr_trainer.data.conversion.convert import convert
from ctr_trainer.data.source import ConvertedData
from ctr_trainer.estimator import slices
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.train_settings import Schedule
from tests import small
from tests.docs.page import ROOT

ROWS = 600
MORE = """
[[cross]]
name = "both"
columns = ["user", "item"]
dim = 4

[[sparse]]
name = "brand"

[[lookup]]
name = "brand"
file = "brands.csv"
key = "item"
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The (model directory, directory of the evaluation data) of a small model."""
    directory = tmp_path_factory.mktemp("insight")
    for name in ("train", "test"):
        (directory / name).mkdir()
        (directory / name / "brands.csv").write_text("item,brand\n" + "".join(f"i{n},b{n % 4}\n" for n in range(60)))
    data = small.make(directory / "train", rows=1500, more=MORE)
    small.make(directory / "test", rows=ROWS, seed=1, more=MORE)
    flags = [
        "--hidden_units=8",
        "--batch_size=64",
        "--threads=1",
        "--recipe=none",
        "--epochs=8",
        "--embedding_learning_rate=0.3",
    ]
    assert cli.main(["train", f"--train_data={data}", f"--model_dir={directory / 'model'}", *flags]) == 0
    return directory / "model", directory / "test"


@pytest.fixture
def run(trained, capsys):
    """f(command, data below the directory of the evaluation data, flags) -> (its status, its output)."""
    model, test = trained

    def call(command, data, *more):
        capsys.readouterr()
        common = [f"--model_dir={model}", f"--eval_data={test / data}", "--batch_size=64", "--threads=1"]
        return cli.main([command, *common, *more]), "".join(capsys.readouterr())

    return call


@pytest.mark.parametrize(
    ("command", "name"), [("evaluate", "m.json"), *(("importance", f"i.{x}") for x in ("json", "png"))]
)
def test_what_was_measured_is_printed_even_if_its_file_cannot_be_written(trained, tmp_path, capsys, command, name):
    if name.endswith(".png"):
        pytest.importorskip("matplotlib", reason="no matplotlib: pip install matplotlib")
    (tmp_path / "file").touch()
    flags = [f"--model_dir={trained[0]}", f"--eval_data={trained[1] / 'data'}", "--threads=1"]
    capsys.readouterr()
    assert cli.main([command, *flags, f"--output={tmp_path}/file/{name}"]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[-1])["auc"] > 0
    assert f"file/{name}: cannot be written: File exists" in printed.err and "Traceback" not in printed.err


def test_importance_writes_a_table_json_and_a_png(run, trained, tmp_path):
    pytest.importorskip("matplotlib", reason="no matplotlib: pip install matplotlib")
    written, drawn = tmp_path / "importance.json", tmp_path / "importance.png"
    status, text = run("importance", "data", f"--output={written}", "--repeats=3", "--rows=300", "--seed=0")
    assert status == 0
    found = json.loads(text.splitlines()[-1])
    assert found.items() <= json.loads(written.read_text()).items()
    assert found["examples"] == 300 and {each["column"] for each in found["columns"][:2]} == {"user", "item"}
    rises = [each["logloss_rise"] for each in found["columns"]]
    assert rises == sorted(rises, reverse=True)
    for each in found["columns"][:2]:
        assert each["auc_drop"] > each["auc_drop_error"] > 0 and each["logloss_rise_error"] > 0
    # Two features are made of the age, two of the price.
    names = [each["column"] for each in found["columns"]]
    assert sorted(names) == sorted("user item brand place device age price tags topics words history".split())
    assert [line.split()[0] for line in text.splitlines()[-len(names) - 2 : -1]] == ["column", *names]
    assert ctr.load(trained[0]).importance(trained[1] / "data", repeats=3, rows=300) == found["columns"]
    assert run("importance", "rows.csv", f"--output={drawn}", "--repeats=2", "--rows=50")[0] == 0
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert run("importance", "data", f"--output={drawn}", "--repeats=2", "--rows=50")[0] == 0
    drawn.write_bytes(b"mine")
    status, text = run("importance", "data", f"--output={drawn}")
    assert status == 1 and "was not written by `importance`" in text


def test_importance_is_of_the_label_that_a_model_predicts(tmp_path, capsys):
    data = small.make(tmp_path, rows=300, labels=2)
    model = [f"--model_dir={tmp_path / 'model'}", "--threads=1", "--batch_size=64"]
    assert cli.main(["train", *model, f"--train_data={data}", "--label=bought", "--recipe=none"]) == 0
    found = []
    for command in ("evaluate", "importance"):
        assert cli.main([command, *model, f"--eval_data={data}"]) == 0
        found.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert found[1]["auc"] == pytest.approx(found[0]["auc/bought"])


def test_metrics_by_the_value_of_a_column_are_those_of_its_rows(run, trained, tmp_path):
    status, text = run("evaluate", "rows.csv", "--by=place")
    assert status == 0 and "\nby place\nvalue " in text
    found = json.loads(text.splitlines()[-1])["by"]
    assert found["worst"] == []
    assert run("predict", "data", f"--output={tmp_path / 'p.parquet'}")[0] == 0
    scores, rows = pq.read_table(tmp_path / "p.parquet"), pa.csv.read_csv(trained[1] / "rows.csv")
    label, p, place = (np.asarray(each) for each in (rows["clicked"], scores["probabilities"], rows["place"]))
    values = {row.pop("value"): row for row in found["largest"]}
    assert values.keys() == {"north", "south", "(missing)"}
    for name, row in values.items():
        own = place == ("" if name == "(missing)" else name)
        assert row.pop("normalized_entropy") > 0
        assert row == pytest.approx(
            {
                "examples": own.sum(),
                "auc": roc_auc_score(label[own], p[own]),
                "logloss": log_loss(label[own], p[own]),
                "copc": label[own].sum() / p[own].sum(),
            },
            abs=2e-4,
        )


def test_the_auc_of_a_slice_is_exact_for_any_range_of_scores(tmp_path, monkeypatch):
    distributed.init()
    monkeypatch.setattr(slices, "_WAITING", 150)
    random, found = np.random.default_rng(0), slices.Slices(ConvertedData(small.make(tmp_path, rows=64)), "device")
    ranges = [(-20.0, -14.0), (0.3, 0.306), (-3.0, 3.0)]
    examples = []
    for _ in range(4):
        number = random.integers(3, size=100)
        low, high = np.array(ranges)[number].T
        logits = random.uniform(low, high).astype(np.float32)
        labels = (random.uniform(low, high) < logits).astype(np.float32)
        examples.append((number, logits, labels, random.integers(3, size=100).astype(np.float32)))
        found.update(types.SimpleNamespace(ids={"(slice)": number}), "", *examples[-1][1:])
    (by,) = found.results().values()
    number, logits, labels, weights = map(np.concatenate, zip(*examples, strict=True))
    expected = [
        roc_auc_score(*(each[number == at] for each in (labels, logits)), sample_weight=weights[number == at])
        for at in range(3)
    ]
    aucs = {row["value"]: row["auc"] for row in by["largest"]}
    assert sorted(aucs.values()) == pytest.approx(sorted(expected)) and min(expected) > 0.6


@pytest.mark.parametrize(
    ("data", "by", "count", "first"),
    [
        ("data", "price", 10, "below "),  # Numbers: ranges between their deciles.
        ("data", "age_group", 11, "below "),  # Some have no age.
        ("data", "device", 3, "key "),  # Converted data has no texts.
        ("rows.csv", "device", 3, ""),
        ("rows.csv", "brand", 4, "key "),  # Looked up by the item.
        ("rows.csv", "order", 2, "no"),  # Not in the feature spec.
        ("data", "row", 10, "(other values)"),  # An id column.
    ],
)
def test_evaluate_by_any_column(run, monkeypatch, data, by, count, first):
    monkeypatch.setattr("ctr_trainer.estimator.slices._VALUES", 9)
    status, text = run("evaluate", data, f"--by={by}")
    assert status == 0, text
    found = json.loads(text.splitlines()[-1])["by"]
    rows = found["largest"]
    assert len(rows) == count and first in rows[0]["value"] and found["worst"] == []
    assert sum(row["examples"] for row in rows) == ROWS


def test_the_worst_values_are_those_of_the_highest_normalized_entropy(run, monkeypatch):
    monkeypatch.setattr("ctr_trainer.estimator.slices._LEAST", 12)
    found = json.loads(run("evaluate", "rows.csv", "--by=user")[1].splitlines()[-1])["by"]
    sizes = [row["examples"] for row in found["largest"]]
    worst = [row["normalized_entropy"] for row in found["worst"]]
    assert len(sizes) == len(worst) == 10 and sizes == sorted(sizes, reverse=True)
    assert worst == sorted(worst, reverse=True) and min(row["examples"] for row in found["worst"]) >= 12
    assert max(row["normalized_entropy"] for row in found["largest"]) <= worst[0]


def test_a_list_or_an_unknown_column_is_refused(run):
    for by, message in (("tags", "expected an id column"), ("devise", "did you mean device?")):
        status, text = run("evaluate", "data", f"--by={by}")
        assert status == 1 and message in text
    status, text = run("evaluate", "rows.csv", "--by=devise")
    assert status == 1 and "no column 'devise'" in text


def _test_loss(data, model_dir, without=""):
    """Returns the test log loss of a model that was trained without the features of a column."""

    def batches(part, **how):
        source = ConvertedData(data / part)
        source.spec = source.spec.of_columns({f.column for f in source.spec.features} - {without})
        return ctr.BatchReader(source, 1024, **how)

    rows = ctr.EmbeddingConfig(optimizer="adagrad", l2=1e-5)
    params = {"train_op_fn": ctr.TrainOp("adagrad", 0.1, schedule=Schedule("linear"))}
    estimator = ctr.Estimator("lr", model_dir, params, ctr.RunConfig(seed=1, threads=1, embedding=rows))
    estimator.train(lambda: batches("train", seed=1, epochs=3))
    return estimator.evaluate(lambda: batches("test", shuffle=False, epochs=1))["logloss"]


@pytest.mark.slow
def test_importance_agrees_with_retraining_without_each_column_on_movielens(real_data, tmp_path):
    example, files = ROOT / "examples" / "movielens", real_data / "movielens"
    with open(files / "ratings.dat") as ratings:
        (tmp_path / "ratings.dat").write_text("".join(itertools.islice(ratings, 150_000)))
    for name in ("users.dat", "movies.dat"):
        (tmp_path / name).symlink_to(files / name)
    runpy.run_path(str(example / "prepare.py"))["prepare"](tmp_path, tmp_path / "rows.parquet")
    spec, data = ctr.FeatureSpec.load(example / "movielens.toml"), tmp_path / "data"
    convert("parquet", tmp_path / "rows.parquet", data, spec, split="random:0.7,0.3", progress=False)
    whole = _test_loss(data, tmp_path / "whole")
    found = ctr.load(tmp_path / "whole").importance(data / "test", rows=50_000)
    lost = [_test_loss(data, tmp_path / each["column"], each["column"]) - whole for each in found]
    assert len(found) == 8
    # 0.95; the AUC lost has 0.74.
    assert spearmanr([each["logloss_rise"] for each in found], lost).statistic >= 0.9


def _moved_csv(path, rows):
    """Writes the rows with other users, without half of the devices, at three times the price, and all clicked."""
    columns = {name: rows[name] for name in rows.column_names}
    columns["user"] = pc.binary_join_element_wise("new", rows["user"], "")
    half = pa.array(np.arange(len(rows)) % 2 == 0)
    columns["device"] = pc.if_else(half, rows["device"], "")
    columns["price"] = pc.multiply(rows["price"], 3.0)
    columns["clicked"] = pa.array(np.ones(len(rows), np.int64))
    pa.csv.write_csv(pa.table(columns), path)


def test_evaluate_against_other_data_says_what_has_moved_worst_first(run, trained):
    train, test = trained[1].parent / "train" / "data", trained[1]
    status, text = run("evaluate", "data", f"--against={train}")
    found = json.loads(text.splitlines()[-1])["moved"]
    assert status == 0 and found["labels"]["clicked"].keys() == {"rate", "rate_before"}
    assert found["against"] == str(train) and f"moved since {train}, " in text
    assert len(found["sentences"]) == 1  # Nothing but the label.
    _moved_csv(test / "moved.csv", pa.csv.read_csv(test / "rows.csv"))
    status, text = run("evaluate", "moved.csv", f"--against={test / 'rows.csv'}")
    assert status == 0
    found = json.loads(text.splitlines()[-1])["moved"]
    features = {each.pop("feature"): each for each in found["features"]}
    assert list(features)[0] == "user" and features["user"]["new_keys"] == features["both"]["new_keys"] == 1
    device = pa.csv.read_csv(test / "moved.csv")["device"].to_numpy()
    assert features["device"]["missing"] == pytest.approx((device == "").mean())
    others = {name for name, each in features.items() if each.get("psi", 0) > 0.1}
    assert others == {"user", "device", "price", "price_level"}
    said = found["sentences"]
    assert said[0].startswith("100.00% of the labels `clicked` are positive, ")
    assert any(each.startswith("100% of `user` were never seen in training, where ") for each in said)
    assert any(each.startswith("`price` has another distribution: its PSI is ") for each in said)
    assert [each for each in said if "`age`" in each or "`item`" in each] == []
    assert all(each in text for each in said)


def test_the_population_stability_index_is_that_of_the_shares():
    before, now = np.repeat([1, 2, 3], [50, 30, 20]), np.repeat([1, 2, 3, 4], [20, 30, 40, 10])

    def counts_of(*both):
        bins = Bins(pa.array(both[1]), 20, 20)
        return np.stack([np.bincount(bins.numbers(pa.array(each)), minlength=len(bins.names)) for each in both])

    counts = counts_of(now, before)
    assert counts[:, :3].tolist() == [[20, 30, 40], [50, 30, 20]] and counts[0, -2:].tolist() == [10, 0]
    p, q = (counts + 0.5) / (100 + 0.5 * counts.shape[1])
    assert moved._psi(counts) == pytest.approx(sum((p - q) * np.log(p / q)))
    assert moved._psi(counts_of(before, before)) == 0
    numbers = [*map(float, range(100)), None]
    higher = [*map(float, range(1000, 1100)), None]
    assert moved._psi(counts_of(higher, numbers)) > 1
    assert counts_of(numbers, numbers)[:, -1].tolist() == [1, 1]


def test_an_export_counts_the_new_keys_of_crosses_and_buckets_too(run, trained, tmp_path, capsys):
    ctr.load(trained[0]).export(tmp_path / "export")
    found = json.loads(run("evaluate", "rows.csv")[1].splitlines()[-1])
    given = [f"--saved_model={tmp_path / 'export'}", f"--eval_data={trained[1] / 'rows.csv'}", "--threads=1"]
    assert cli.main(["evaluate", *given]) == 0
    served = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert served["new_keys"] == found["new_keys"] and 0 < served["new_keys"]["both"]["share"] < 1
    assert cli.main(["evaluate", *given, "--by=place"]) == 1
    assert "--by and --against are of a model" in capsys.readouterr().err
