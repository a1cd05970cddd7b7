"""Training on, evaluating and predicting Parquet made elsewhere, without conversion."""

import errno
import gzip
import json
import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from pyarrow import csv

import ctr_trainer as ctr
from ctr_trainer import cli
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.open_source import open_source
from ctr_trainer.data.conversion import converted_cache
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.features.columns import TableLimits
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.by_flag import replaced
from ctr_trainer.system.files.local_path import refusing_unwritable
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.data import foreign
from tests.data.test_tfrecord import row, write

ROWS = 203


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Holds the data, `clicks`, its spec and a flagfile."""
    directory = tmp_path_factory.mktemp("foreign")
    foreign.write_spark(directory / "clicks", ROWS)
    (directory / "spec.toml").write_text(foreign.TOML)
    return directory


def flags(directory, model_dir, *more):
    data = [f"--{kind}_data={directory / 'clicks'}" for kind in ("train", "eval")]
    path = model_dir.with_suffix(".flags")
    path.write_text(
        "\n".join(
            [*data, f"--model_dir={model_dir}", "--hidden_units=8", "--batch_size=16", "--threads=1", "--recipe=none"]
            + list(more)
        )
    )
    return f"--flagfile={path}"


def convert_and_train(directory, tmp_path):
    convert = ["--format=parquet", f"--input={directory / 'clicks'}", f"--feature_spec={directory / 'spec.toml'}"]
    assert cli.main(["convert", *convert, f"--output={tmp_path / 'converted'}"]) == 0
    flagfile = flags(directory, tmp_path / "of_converted", "--epochs=2", "--shuffle_buffer=0")
    assert cli.main(["train", flagfile, f"--train_data={tmp_path / 'converted'}"]) == 0
    # At its end it was evaluated on data that are not converted, by its own feature spec.
    summary = json.loads((tmp_path / "of_converted" / "train_summary.json").read_text())
    assert summary["evaluation"]["examples"] == ROWS
    return flagfile


def test_a_model_is_the_same_with_and_without_conversion(directory, tmp_path, capsys):
    converted = convert_and_train(directory, tmp_path)
    (tmp_path / "other.toml").write_text(foreign.TOML.replace("dim = 4", "dim = 5"))
    other = [f"--train_data={tmp_path / 'converted'}", f"--feature_spec={tmp_path / 'other.toml'}"]
    assert cli.main(["train", converted, *other, f"--model_dir={tmp_path / 'new'}"]) == 1
    assert "was converted with another spec: 'user': dim 5, not 4; " in capsys.readouterr().err
    spec = f"--feature_spec={directory / 'spec.toml'}"
    direct = flags(
        directory, tmp_path / "direct", "--epochs=2", "--shuffle_buffer=0", spec, f"--export_dir={tmp_path / 'e'}"
    )
    assert cli.main(["train", direct]) == 0
    capsys.readouterr()

    metrics = []
    for flagfile in (converted, direct):  # the model's own spec serves where the flags name none
        assert cli.main(["evaluate", flagfile]) == 0
        metrics.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert metrics[0]["examples"] == metrics[1]["examples"] == ROWS
    new_keys = [each.pop("new_keys") for each in metrics]
    assert new_keys[0] == new_keys[1] and metrics[1] == pytest.approx(metrics[0], rel=1e-4)

    export = ["evaluate", f"--saved_model={tmp_path / 'e'}", f"--eval_data={directory / 'clicks'}", "--threads=1"]
    assert cli.main([*export, "--format=parquet"]) == 0
    served = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {name: served[name] for name in ("examples", "auc")} == pytest.approx(
        {name: metrics[1][name] for name in ("examples", "auc")}, abs=1e-4
    )
    write(tmp_path / "a.tfrecord", map(_with_day, map(row, range(ROWS)), _days().to_pylist()))
    assert cli.main([*export[:2], f"--eval_data={tmp_path / 'a.tfrecord'}", "--format=tfrecord"]) == 0
    of_records = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert of_records.pop("saved_model") == served.pop("saved_model") == str(tmp_path / "e")
    assert of_records.pop("new_keys") == served.pop("new_keys") == new_keys[1]
    assert of_records == pytest.approx(served, rel=1e-6)
    assert cli.main([*export[:2], f"--eval_data={next((directory / 'clicks').rglob('*.parquet'))}"]) == 1
    assert "it is not text, but Parquet: read it as format parquet" in capsys.readouterr().err

    assert cli.main(["predict", direct, f"--output={tmp_path / 'p.parquet'}"]) == 0
    predictions = pq.read_table(tmp_path / "p.parquet")
    assert sorted(predictions["row"].to_pylist()) == list(range(ROWS))
    assert np.mean(predictions["probabilities"].to_numpy()) == pytest.approx(metrics[1]["prob_mean"], abs=1e-6)


def test_the_given_limits_hold_for_converted_data_and_another_weight_is_refused(tmp_path):
    data, spec = small.make(tmp_path, 50), tmp_path / "other.toml"
    distributed.init()

    def opened(path, more="", old="", new=""):
        spec.write_text(small.SPEC.replace(old, new, 1) + more)
        values = {"train_data": str(path), "feature_spec": str(spec), "model_dir": str(tmp_path / "model")}
        return open_source(str(path), replaced(Experiment(), values), warns=False)

    limits = '[[limits]]\ntable = "dim4"\nttl_steps = 7\n'
    for path in (data, tmp_path / "rows.csv"):
        for more, expected in ((limits, (TableLimits("dim4", ttl_steps=7),)), ("", ())):
            assert opened(path, more).spec.limits == expected
    again = opened(tmp_path / "rows.csv", old="dim = 4", new="dim = 8").spec
    assert {each.dim for each in again.embedded} == {8} and len([*(tmp_path / "model" / "data_cache").iterdir()]) == 1
    with pytest.raises(UserError, match="was converted with another spec: weight price, not None"):
        opened(data, old="[label]", new='weight = "price"\n[label]')


def test_a_run_that_goes_on_keeps_the_models_statistics(directory, tmp_path):
    spec = f"--feature_spec={directory / 'spec.toml'}"
    flagfile = flags(directory, tmp_path / "model", spec)
    assert cli.main(["train", flagfile, "--max_steps=5"]) == 0
    before = (tmp_path / "model" / "features.json").read_text()
    assert json.loads(before)["statistics"]["price"]["max"] == (ROWS - 1) / 4
    assert cli.main(["train", flagfile, "--epochs=1"]) == 0
    assert (tmp_path / "model" / "features.json").read_text() == before
    summary = json.loads((tmp_path / "model" / "train_summary.json").read_text())
    assert (summary["global_step"], summary["examples"]) == (13, ROWS - 5 * 16)


def test_a_feature_spec_that_contradicts_the_model_is_refused_by_what_differs(directory, tmp_path, capsys, caplog):
    caplog.set_level("INFO")
    flagfile = flags(directory, tmp_path / "model", f"--feature_spec={directory / 'spec.toml'}", "--max_steps=2")
    assert cli.main(["train", flagfile]) == 0

    def given(old, new, *more, command="evaluate"):
        assert old in foreign.TOML
        (tmp_path / "other.toml").write_text(foreign.TOML.replace(old, new, 1))
        caplog.clear()
        status = cli.main([command, flagfile, f"--feature_spec={tmp_path / 'other.toml'}", *more])
        return capsys.readouterr().err if status else caplog.text

    for command in ("evaluate", "train"):
        error = given("dim = 4", "dim = 8", command=command)
        assert f"--feature_spec={tmp_path / 'other.toml'}: the model in {tmp_path / 'model'} was trained with " in error
        assert "'user': dim 8, not 4; " in error
    output = f"--output={tmp_path / 'p.parquet'}"
    assert "'user': dim 8, not 4; " in given("dim = 4", "dim = 8", output, command="predict")
    assert "error" not in given("dim = 4", "dim = 8", "--embedding_dim=4")  # The flag replaces the spec's dims.
    assert "'price': transform log1p, not standardize; " in given('transform = "standardize"', 'transform = "log1p"')
    assert "'day' is missing" in given(', "day"', "")
    assert "the features are in another order" in given('"user", "item"', '"item", "user"')
    assert "unlike the model's: ids ['row', 'user'], not ['row']" in given('ids = ["row"]', 'ids = ["row", "user"]')
    positive = given('column = "clicked"', 'column = "hour"\nthreshold = 5.0')
    assert "unlike the model's: label column ['hour'], not ['clicked']; label threshold [5.0], not [None]; " in positive


def test_tfrecords_are_converted_on_first_use(directory, tmp_path, capsys):
    write(tmp_path / "a.tfrecord", map(row, range(ROWS)))
    data = [f"--{kind}_data={tmp_path / 'a.tfrecord'}" for kind in ("train", "eval")]
    flagfile = flags(directory, tmp_path / "model", *data, f"--feature_spec={directory / 'spec.toml'}")
    inside = ["train", flagfile, f"--train_data={tmp_path}", "--eval_data="]  # The cache would be one of its inputs.
    assert cli.main(inside) == 1
    assert "data_cache: is inside the input" in capsys.readouterr().err
    for _ in range(2):
        assert cli.main(["train", flagfile]) == 0
    (cached,) = (tmp_path / "model" / "data_cache").iterdir()
    written = (cached / "_dataset.json").stat().st_mtime_ns
    assert cli.main(["evaluate", flagfile]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["examples"] == ROWS
    assert cli.main(["predict", flagfile, f"--output={tmp_path / 'p.parquet'}"]) == 0  # the labels do no harm
    assert (cached / "_dataset.json").stat().st_mtime_ns == written
    assert list((tmp_path / "model" / "data_cache").iterdir()) == [cached]
    write(tmp_path / "a.tfrecord", map(row, range(ROWS + 1)))  # other data of the same name
    assert cli.main(["evaluate", flagfile]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["examples"] == ROWS + 1
    (tmp_path / "a.tfrecord").write_text("no TFRecord at all, but a text that is long enough\n")
    assert cli.main(["evaluate", flagfile]) == 1
    error = capsys.readouterr().err
    assert "a.tfrecord: is not a TFRecord file" in error and "If it is text, rename it to end in .csv or .tsv" in error
    assert len(list((tmp_path / "model" / "data_cache").iterdir())) == 2


def test_a_csv_is_trained_evaluated_and_predicted_on_as_it_is(tmp_path, capsys):
    data = small.make(tmp_path / "made", 100)
    rows = tmp_path / "rows.CSV.gz"
    rows.write_bytes(gzip.compress((data.parent / "rows.csv").read_bytes()))
    sources = [f"--train_data={rows}", f"--eval_data={rows}", f"--feature_spec={data.parent / 'spec.toml'}"]
    flagfile = flags(tmp_path, tmp_path / "model", *sources)
    assert cli.main(["train", flagfile]) == 0
    predicted, evaluated = [], []
    for eval_data in (data, rows):
        where = f"--eval_data={eval_data}"
        assert cli.main(["predict", flagfile, where, f"--output={tmp_path / 'p.parquet'}"]) == 0
        predicted.append(pq.read_table(tmp_path / "p.parquet")["logits"].to_numpy())
        capsys.readouterr()
        assert cli.main(["evaluate", flagfile, where]) == 0
        evaluated.append(json.loads(capsys.readouterr().out.splitlines()[-1]))
    assert len(predicted[0]) == evaluated[0]["examples"] == 100
    np.testing.assert_allclose(*predicted, rtol=1e-5)
    assert evaluated[1].pop("new_keys") == evaluated[0].pop("new_keys")
    assert evaluated[1] == pytest.approx(evaluated[0], rel=1e-5)


def test_ids_written_in_another_way_are_warned_of_wherever_they_are_scored(tmp_path, caplog, capsys, monkeypatch):
    def write(name, form, seed):
        rng = np.random.default_rng(seed)
        pairs = zip(rng.integers(0, 50, 500), rng.integers(0, 30, 500), strict=True)
        rows = [f"{int(item % 3 == 0)},{user},{form.format(item)},{form.format(item)}|" for user, item in pairs]
        (tmp_path / name).write_text("\n".join(["click,user,item,seen", *rows]) + "\n")
        return f"--eval_data={tmp_path / name}"

    write("train.csv", "{}", 0)
    (tmp_path / "spec.toml").write_text(
        'name = "ids"\n[label]\ncolumn = "click"\n[defaults]\ndim = 4\n[[sparse]]\ncolumns = ["user", "item"]\n'
        '[[sparse]]\nname = "seen"\nslot = "item"\ncombiner = "mean"\n'
    )
    (tmp_path / "ids.flags").write_text(
        f"--train_data={tmp_path / 'train.csv'}\n--feature_spec={tmp_path / 'spec.toml'}\n"
        f"--model_dir={tmp_path / 'model'}\n--batch_size=32\n--epochs=2\n--threads=1\n"
    )
    flagfile, export = f"--flagfile={tmp_path / 'ids.flags'}", tmp_path / "export"
    caplog.set_level(logging.INFO)
    assert cli.main(["train", flagfile, write("same.csv", "{}", 1), f"--export_dir={export}"]) == 0
    assert "keys that were never trained (in training): " in caplog.text and "are new" not in caplog.text
    commands = [
        ["evaluate", flagfile],
        ["predict", flagfile, f"--output={tmp_path / 'p.parquet'}"],
        ["evaluate", f"--saved_model={export}", "--threads=1"],
    ]
    for number, form in enumerate(["{}.0", "{}"]):
        where, wrong = write(f"{number}.csv", form, 1), float(form != "{}")
        for command in commands:
            monkeypatch.setattr(NewKeys, "_warned", set())
            caplog.clear()
            capsys.readouterr()
            assert cli.main([*command, where]) == 0
            shares = json.loads(capsys.readouterr().out.splitlines()[-1])["new_keys"]
            assert [shares[name]["share"] for name in ("user", "item", "seen")] == [0, wrong, wrong], (form, command)
            assert 0 <= shares["item"]["in_training"] < 0.5
            text = f"100% of its keys are new; values look like {form.format(77)!r}, in training like '77'"
            assert (f"feature item: {text}" in caplog.text) == bool(wrong)
    as_text = csv.ConvertOptions(column_types={"item": pa.string()})
    pq.write_table(csv.read_csv(tmp_path / "0.csv", convert_options=as_text), tmp_path / "0.parquet")
    monkeypatch.setattr(NewKeys, "_warned", set())
    caplog.clear()
    assert cli.main(["evaluate", flagfile, f"--eval_data={tmp_path / '0.parquet'}"]) == 0
    # Parquet is read without a conversion, which alone finds how most values are written.
    assert "feature item: 100% of its keys are new. In training" in caplog.text


def test_data_that_is_not_converted_needs_a_spec(directory, tmp_path, capsys):
    assert cli.main(["train", flags(directory, tmp_path / "model")]) == 1
    assert "set feature_spec to read Parquet" in capsys.readouterr().err


def test_predictions_need_no_labels_and_evaluations_do(directory, tmp_path, capsys):
    spec = f"--feature_spec={directory / 'spec.toml'}"
    flagfile = flags(directory, tmp_path / "model", spec)
    assert cli.main(["train", flagfile]) == 0

    def predicted(data):
        assert cli.main(["predict", flagfile, f"--eval_data={data}", f"--output={tmp_path / 'p.parquet'}"]) == 0
        table = pq.read_table(tmp_path / "p.parquet").sort_by("row")
        assert table["row"].to_pylist() == list(range(ROWS))
        labels.append(table["label"].to_numpy() if "label" in table.column_names else None)
        return table["logits"].to_numpy()

    labels, clicked = [], [float(i % 3 == 0) for i in range(ROWS)]
    expected = predicted(directory / "clicks")
    np.testing.assert_array_equal(labels.pop(), clicked)
    unlabelled, records = tmp_path / "unlabelled.parquet", tmp_path / "unlabelled.tfrecord"
    clicks = foreign.table(0, ROWS).append_column("day", _days())
    pq.write_table(clicks.drop_columns(["clicked"]), unlabelled, row_group_size=50)
    np.testing.assert_allclose(predicted(unlabelled), expected, rtol=1e-5)
    assert labels.pop() is None
    nonsense = clicks.set_column(1, "clicked", pa.nulls(ROWS))
    pq.write_table(nonsense, tmp_path / "nulls.parquet")
    np.testing.assert_allclose(predicted(tmp_path / "nulls.parquet"), expected, rtol=1e-5)
    assert np.isnan(labels.pop()).all()
    write(records, map(row, range(ROWS)))
    predicted(records)
    np.testing.assert_array_equal(labels.pop(), clicked)
    write(records, (row(i) if i else _without_label(row(i)) for i in range(ROWS)))
    assert len(predicted(records)) == ROWS
    assert labels.pop() is None
    for data, error in ((unlabelled, "for the label"), (tmp_path / "nulls.parquet", "is not a label of 0 or 1")):
        assert cli.main(["evaluate", flagfile, f"--eval_data={data}"]) == 1
        assert error in capsys.readouterr().err

    convert = ["convert", "--format=parquet", f"--input={unlabelled}", spec]
    assert cli.main([*convert, f"--output={tmp_path / 'converted'}"]) == 1
    assert "`predict` needs no labels, and `convert` none with unlabelled set" in capsys.readouterr().err
    assert cli.main([*convert, f"--output={tmp_path / 'converted'}", "--unlabelled"]) == 0
    assert "label mean" not in capsys.readouterr().out
    np.testing.assert_allclose(predicted(tmp_path / "converted"), expected, rtol=1e-5)
    for command, flag in (("evaluate", "eval_data"), ("train", "train_data")):
        assert cli.main([command, flagfile, f"--{flag}={tmp_path / 'converted'}", "--epochs=2"]) == 1
        assert "was converted without labels" in capsys.readouterr().err


def _days():
    """Returns the column that corresponds to the directories of `foreign.write_spark`."""
    return pa.array([f"2024-01-0{1 + i // 40 % 3}" for i in range(ROWS)])


def _with_day(record, day):
    parsed = tf.train.Example.FromString(record)
    parsed.features.feature["day"].bytes_list.value[:] = [day.encode()]
    return parsed.SerializeToString(deterministic=True)


def _without_label(record):
    parsed = tf.train.Example.FromString(record)
    del parsed.features.feature["clicked"]
    return parsed.SerializeToString(deterministic=True)


@pytest.fixture(scope="module")
def of_numbers(tmp_path_factory):
    """Holds a CSV, its spec, and the flags of a model that is trained on it."""
    directory = tmp_path_factory.mktemp("numbers")
    (directory / "a.csv").write_text("row,click,price\n" + "".join(f"r{i},{i % 3 // 2},{i}\n" for i in range(60)))
    (directory / "s.toml").write_text(
        'name = "s"\nids = ["row"]\n[label]\ncolumn = "click"\n[[dense]]\nname = "price"\n'
    )
    assert cli.main(["train", f"--train_data={directory / 'a.csv'}", *trains(directory)]) == 0
    return directory


def trains(directory):
    model = [f"--model_dir={directory / 'model'}", "--model=lr", "--batch_size=16", "--threads=1", "--recipe=none"]
    return [f"--feature_spec={directory / 's.toml'}", *model]


@pytest.mark.parametrize(("command", "ending"), [("predict", "csv"), ("evaluate", "csv"), ("train", "parquet")])
def test_each_command_leaves_out_as_many_bad_rows_as_it_may(of_numbers, tmp_path, capsys, caplog, command, ending):
    rows, data = {"row": ["a", "b", "c"], "click": [0, 1, 0], "price": ["1.5", "cheap", "3"]}, tmp_path / f"b.{ending}"
    pq.write_table(pa.table(rows), tmp_path / "b.parquet")
    (tmp_path / "b.csv").write_text("row,click,price\na,0,1.5\nb,1,cheap\nc,0,3\n")
    which = "train" if command == "train" else "eval"
    flags = [f"--{which}_data={data}", *trains(of_numbers)]
    flags += [f"--output={tmp_path / 'p.parquet'}"] if command == "predict" else []
    flags += [f"--model_dir={tmp_path / 'model'}"] if command == "train" else []
    assert cli.main([command, *flags]) == 1
    assert f"b.{ending}" in (said := capsys.readouterr().err) and "'cheap' is not a finite number" in said
    assert "increase max_bad_rows (now 0)" in said
    assert cli.main([command, *flags, "--max_bad_rows=1"]) == 0
    assert "bad row 1 of at most 1, left out: " in caplog.text and "lacks 1 bad rows" in caplog.text
    if command == "predict":
        assert pq.read_table(tmp_path / "p.parquet")["row"].to_pylist() == ["a", "c"]
    if ending == "csv":
        assert cli.main([command, *flags]) == 1
        assert "lacks 1 bad rows. Increase max_bad_rows (now 0)" in capsys.readouterr().err


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_conversion_on_first_use_keeps_partition_columns(tmp_path, ending):
    for day in ("2024-01-30", "2024-01-31"):
        part = tmp_path / "warehouse" / f"day={day}" / f"part-0.{ending}"
        part.parent.mkdir(parents=True)
        table = pa.table({"click": ["0", "1", "?"], "user": ["a", "b", "c"]})
        (csv.write_csv if ending == "csv" else pq.write_table)(table, part)
    (tmp_path / "s.toml").write_text(
        'name = "s"\nids = ["day"]\n[label]\ncolumn = "click"\n[[sparse]]\ncolumns = ["user", "day"]\ndim = 2\n'
    )
    data = [f"--train_data={tmp_path / 'warehouse'}", f"--eval_data={tmp_path / 'warehouse'}", "--max_bad_rows=2"]
    assert cli.main(["train", *data, *trains(tmp_path)]) == 0
    assert cli.main(["predict", *data[1:], *trains(tmp_path), f"--output={tmp_path / 'p.parquet'}"]) == 0
    # A row that training leaves out because of its label is predicted.
    assert pq.read_table(tmp_path / "p.parquet")["day"].to_pylist() == 3 * ["2024-01-30"] + 3 * ["2024-01-31"]


def test_a_full_disk_is_not_taken_for_missing_labels(of_numbers, tmp_path, monkeypatch, capsys):
    (tmp_path / "b.csv").write_text((of_numbers / "a.csv").read_text() + "z,1,2\n")
    calls = []

    def convert(*given, **options):
        calls.append(given)
        with refusing_unwritable("data_cache"):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(converted_cache, "convert", convert)
    predict = ["predict", f"--eval_data={tmp_path / 'b.csv'}", f"--output={tmp_path / 'p.parquet'}"]
    assert cli.main([*predict, *trains(of_numbers)]) == 1
    assert "No space left on device" in capsys.readouterr().err and len(calls) == 1


def test_converted_data_is_not_read_as_raw_by_its_parent_a_pattern_or_a_list(tmp_path, capsys):
    rows = "".join(f"{i % 3 // 2},u{i % 5}\n" for i in range(100))
    (tmp_path / "a.csv").write_text("label,user\n" + rows)
    (tmp_path / "s.toml").write_text('name = "s"\n[label]\ncolumn = "label"\n[[sparse]]\nname = "user"\ndim = 2\n')
    convert = ["convert", "--format=csv", f"--feature_spec={tmp_path / 's.toml'}", "--split=random:0.8,0.2"]
    assert cli.main([*convert, f"--input={tmp_path / 'a.csv'}", f"--output={tmp_path / 'mine'}"]) == 0
    train, test = tmp_path / "mine" / "train", tmp_path / "mine" / "test"
    model = [f"--model_dir={tmp_path / 'model'}", "--model=lr", "--batch_size=16", "--threads=1", "--recipe=none"]
    assert cli.main(["train", f"--train_data={train}", *model]) == 0
    for data in (tmp_path / "mine", tmp_path / "min*", tmp_path / "mine" / "t*", f"{test},{train}"):
        for more in (["evaluate"], ["predict", f"--output={tmp_path / 'p.parquet'}"], ["train", "--next_data"]):
            which = "train" if "train" in more else "eval"
            assert cli.main([*more, f"--{which}_data={data}", *model]) == 1, data
            assert f"converted data in {test}" in capsys.readouterr().err
    with pytest.raises(UserError, match=f"converted data in {test}, {train}, whose keys would be hashed again"):
        ctr.train(tmp_path / "mine")
    test.rename(tmp_path / "mine" / "_test")
    (tmp_path / "a.csv").rename(train.rename(tmp_path / "mine" / ".train").parent / "a.csv")
    assert cli.main(["evaluate", f"--eval_data={tmp_path / 'mine'}", *model]) == 0  # Hidden directories are not read.


@pytest.mark.parametrize("command", ["predict", "evaluate", "train", "importance", "convert"])
def test_an_empty_path_is_not_the_working_directory(of_numbers, tmp_path, monkeypatch, capsys, command):
    (tmp_path / "a.csv").write_text((of_numbers / "a.csv").read_text())
    monkeypatch.chdir(tmp_path)
    data = {"train": "train_data", "convert": "input"}.get(command, "eval_data")
    model = [] if command == "convert" else trains(of_numbers)
    model += ["--next_data"] if command == "train" else []
    output = ["--output=out/p.parquet"] if command in ("predict", "convert") else []
    convert = [f"--feature_spec={of_numbers / 's.toml'}", "--format=csv"] if command == "convert" else []
    for paths in (",", f"{of_numbers / 'a.csv'},"):
        assert cli.main([command, f"--{data}={paths}", *model, *output, *convert]) == 1
        assert "input: an empty path" in capsys.readouterr().err


def test_an_empty_list_in_python_is_not_the_working_directory(of_numbers, tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text((of_numbers / "a.csv").read_text())
    monkeypatch.chdir(tmp_path)
    model = ctr.load(of_numbers / "model")
    for use in (ctr.train, model.predict, model.evaluate, model.importance):
        with pytest.raises(UserError, match="input: an empty path, as of an empty list"):
            use([])
