"""What `benchmarks/leaderboard.py` makes of files in the leaderboard's form; its figures are no tests."""

import hashlib
import json
import re
import types

import leaderboard
import pyarrow.parquet as pq
import pytest
from leaderboard import leaderboard_data as data

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.train import GROUPS
from ctr_trainer.data.dataset import open_dataset
from ctr_trainer.models import param_texts
from ctr_trainer.models.registry import MODELS, find_model
from tests.benchmarks import bars_files


def texts(work, part, *columns):
    """Returns the columns of a part in the leaderboard's form, row by row."""
    table = pq.read_table(work / "rewritten" / f"{part}.parquet", columns=list(columns))
    return list(zip(*(table[column].to_pylist() for column in columns), strict=True))


def write_rows(directory, name, **parts):
    """Writes rows of text, by part, in the form of a data set; returns the directory of the files."""
    header, files = ",".join(bars_files.FORMS[name][0]), directory / name
    files.mkdir()
    for part, rows in parts.items():
        (files / f"{part}.csv").write_text("".join(f"{line}\n" for line in (header, *rows)))
    return files


@pytest.mark.parametrize("name", bars_files.FORMS)
def test_each_data_set_converts_with_every_row(tmp_path, name):
    files = bars_files.write(name, tmp_path / "files", rows=500)
    entry = data.load(name)
    model = "deepfm" if "valid" in entry.md5 else "din"
    parts = data.prepare(entry, files, tmp_path / "work", model, choose_on_test=False, any_files=True)
    found = [open_dataset(part).rows for part in (parts.train, parts.valid, parts.test)]
    assert found == ([400, 50, 50] if model == "deepfm" else [360, 40, 100])
    combiners = {feature.combiner for feature in open_dataset(parts.train).spec.sparse}
    assert combiners <= {None, "sum", "none" if model == "din" else "mean"}


def test_rare_unknown_and_missing_values_of_a_field_are_one_text(tmp_path):
    entry = data.dataclasses.replace(data.load("criteo_x4"), min_count=2)

    def row(number, text):
        return ",".join(["1", number, *[""] * 12, text, *["x"] * 25])

    train = [row("1", "a"), row("3", "a"), row("0", "b"), row("0", ""), row("9", "a"), row("7", "c"), row("-1", "c")]
    files = write_rows(tmp_path, "criteo_x4", train=train, valid=[row("4", "b")], test=[row("", "z")])
    data.prepare(entry, files, tmp_path / "work", "deepfm", choose_on_test=False, any_files=True)
    # The buckets are 1, 1, 0, 0, 4, 3, -1: 1 occurs twice, 0 has no row of its own, all others are rare.
    assert texts(tmp_path / "work", "train", "I1", "C1") == [
        *[("1", "a"), ("3", "a"), (None, "<OOV>"), (None, "<OOV>"), (None, "a"), (None, "c"), (None, "c")]
    ]
    assert texts(tmp_path / "work", "valid", "I1", "C1", "C2") == [("4", "<OOV>", "x")]
    assert texts(tmp_path / "work", "test", "I1", "C1", "C2") == [(None, "<OOV>", "x")]


def test_histories_keep_what_the_feature_of_their_slot_keeps_and_their_length(tmp_path):
    entry = data.dataclasses.replace(data.load("kuaivideo_x1"), min_count=2)
    train = ["0,1,7,1,0,0,5^7^6,", "0,1,7,0,0,0,5,8", "0,2,4,1,0,0,,8^9"]
    files = write_rows(tmp_path, "kuaivideo_x1", train=train, test=["0,2,5,0,0,0,7^9^8,4"])
    work = tmp_path / "work"
    parts = data.prepare(entry, files, work, "din", choose_on_test=True, any_files=True)
    assert parts.valid == parts.test
    columns = "user_id", "group", "item_id", "pos_items", "neg_items"
    # 7 is kept as an item, 5 as a history of clicks, 8 as one of others; 4, 6, 9 and user 2 are rare.
    assert texts(work, "train", *columns) == [
        ("1", "1", "7", "5^7^<OOV>", None),
        ("1", "1", "7", "5", "8"),
        ("<OOV>", "2", "<OOV>", None, "8^<OOV>"),
    ]
    assert texts(work, "test", *columns) == [("<OOV>", "2", "5", "7^<OOV>^8", "<OOV>")]


def test_numbers_with_a_vector_and_countries_are_written_as_the_spec_reads(tmp_path):
    row = ",".join(["1", "0.25", *["0.5"] * 12, *["7"] * 26])
    files = write_rows(tmp_path, "criteo_x1", train=[row], valid=[row], test=[row])
    data.prepare(data.load("criteo_x1"), files, tmp_path / "x1_work", "deepfm", choose_on_test=False, any_files=True)
    assert texts(tmp_path / "x1_work", "train", "I1", "I2", "C1") == [("I1:0.25", "I2:0.5", "7")]
    kkbox = data.dataclasses.replace(data.load("kkbox_x1"), min_count=1, group="msno")
    files = bars_files.write("kkbox_x1", tmp_path / "kkbox", rows=100)
    data.prepare(kkbox, files, tmp_path / "kkbox_work", "deepfm", choose_on_test=False, any_files=True)
    assert {each for (each,) in texts(tmp_path / "kkbox_work", "train", "isrc")} == {None, "TW", "GB"}


def test_another_or_missing_file_is_named_with_both_md5s(tmp_path):
    files = bars_files.write("frappe_x1", tmp_path / "files", rows=50)
    found = hashlib.md5((files / "train.csv").read_bytes()).hexdigest()
    expected = f"train.csv: has the MD5 {found}; the leaderboard's Frappe_x1 has ba7306e6c4fc19dd2cd84f2f0596d158 "
    expected += ".*Download https.*--any_files"
    with pytest.raises(SystemExit, match=expected):
        leaderboard.main([f"--path={files}", "--data=frappe_x1", f"--work={tmp_path / 'work'}"])
    (files / "train.csv").unlink()
    with pytest.raises(SystemExit, match="train.csv: there is no such file; unpack https://huggingface.co/.*Frappe_x1"):
        leaderboard.main([f"--path={files}", "--data=frappe_x1", f"--work={tmp_path / 'work'}", "--any_files"])


def test_other_rows_than_the_leaderboards_are_refused(tmp_path):
    files = bars_files.write("movielenslatest_x1", tmp_path / "latest", rows=50)
    for _ in range(2):  # The second time, the files have been converted.
        with pytest.raises(SystemExit, match="train.csv: 40 rows were converted, and the leaderboard's has 1,404,801"):
            data.prepare(data.load("movielenslatest_x1"), files, tmp_path / "work", "lr", False, any_files=False)


def test_every_figure_of_every_row_has_a_source_and_its_models_have_flags():
    for name in data.figures():
        entry = data.load(name)
        assert set(entry.models) <= set(MODELS) and set(entry.flags) <= set(entry.models)
        for model in entry.models:
            experiment, *_ = flags.parse(GROUPS, [f"--flagfile={entry.flagfile}", *entry.flags.get(model, ())])
            assert experiment.run.embedding.row_optimizer.name == "dense_adam"
            params = find_model(model).params_class
            shared = {"train_op_fn": None, "hidden_units": experiment.params.hidden_units}
            assert param_texts.parse(model, params, experiment.model.model_params, shared)
            assert entry.spec(model).tables[0].dim in (10, 16, 32, 64, 128)
        assert all(re.fullmatch("[0-9a-f]{32}", md5) for md5 in entry.md5.values())
        assert set(entry.md5) == set(entry.rows) and entry.md5_source and entry.figures
        assert all(0.5 < auc < 1 and 0.1 < logloss < 0.7 for auc, logloss, *_ in entry.models.values())
        # BARS' table has the first of five runs: no further from their mean than runs differ.
        for model, (auc, logloss) in entry.means.items():
            assert abs(entry.models[model][0] - auc) < 0.003 and abs(entry.models[model][1] - logloss) < 0.003


def shown(name, models, **more):
    given = types.SimpleNamespace(
        data=name, any_files=False, choose_on_test=False, more=[], models=list(models), **more
    )
    found = {
        model: [
            {"auc": auc, "logloss": 0.15, "copc": 1.0, "examples_per_sec": 5e4, "core_seconds": 9.5} for auc in aucs
        ]
        for model, aucs in models.items()
    }
    return leaderboard.summary(given, found), leaderboard.notes(given)


def test_means_stand_next_to_bars_mean_of_five_or_its_table():
    found, notes = shown("frappe_x1", {"deepfm": [0.983, 0.985], "lr": [0.93]})
    deepfm, lr = found["models"]["deepfm"], found["models"]["lr"]
    assert (deepfm["auc"], deepfm["auc_spread"], deepfm["seeds"]) == (0.984, 0.002, 2)
    assert (deepfm["bars_auc"], deepfm["bars_mean_auc"]) == (0.9842, 0.983947)
    assert (deepfm["auc_minus_bars"], lr["auc_minus_bars"]) == (0.000053, -0.0056)
    assert found["leaderboard"] and not found["chosen_on_test"]
    rows = [{"model": model, **entry} for model, entry in found["models"].items()]
    header, _, row, _ = leaderboard.sides.markdown(leaderboard.COLUMNS, rows)
    assert "| model | seeds | AUC | spread | BARS | mean of 5 | ours - BARS |" in header and "gauc" not in header
    assert row.startswith("| deepfm | 2 | 0.9840 | 0.0020 | 0.9842 | 0.9839 | +0.0001 |")


def test_the_notes_name_models_without_settings_and_what_chose_the_epoch():
    _, notes = shown("frappe_x1", {"deepfm": [0.98], "lr": [0.93], "masknet": [0.98]})
    assert notes[0] == "Without settings of their own, with those of BARS' DeepFM: masknet."
    _, notes = shown("taobaoad_x1", {"din": [0.65]})
    assert "a tenth of the training file that was held out" in notes[0]
    assert "read each history by itself" in notes[-1]


def test_a_row_from_files_to_its_figures(tmp_path, capfd):
    name, model = "amazonelectronics_x1", "din"
    files = bars_files.write(name, tmp_path / "files")
    command = [f"--data={name}", f"--path={files}", f"--models={model}", "--seeds=1", f"--work={tmp_path / 'work'}"]
    small = ["--any_files", "--", "--epochs=1", "--batch_size=256", "--hidden_units=8", "--threads=1"]
    leaderboard.main([*command, *small])
    out, err = capfd.readouterr()
    *table, first, second = out.splitlines()[:5]
    assert first == "These are not the leaderboard's files: the figures are not the leaderboard's." and first in err
    assert second.startswith("These are not the leaderboard's settings: trained with --epochs=1")
    assert "BARS" not in table[0] and table[2].startswith(f"| {model} | 1 | 0.")
    found = json.loads(out.splitlines()[-1])
    assert not found["leaderboard"]
    entry = found["models"][model]
    assert entry["auc"] > 0.55 and 0 < entry["copc"] < 3 and entry["core_seconds"] > 0
    assert "gauc" in entry
    # The same command again trains nothing, and prints the same.
    leaderboard.main([*command, *small])
    again, err = capfd.readouterr()
    assert again == out and "run 1 of 1" not in err
