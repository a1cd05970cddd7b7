"""A model is continued with the data of the next day, from its beginning and in parts."""

import json

import pytest

from ctr_trainer import cli
from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.checkpoint.model_directory import find_checkpoint, load_features
from ctr_trainer.data import reader
from tests import small

FLAGS = ("--recipe=none", "--batch_size=32", "--threads=1", "--prefetch_batches=0", "--log_steps=1", "--seed=3")


@pytest.fixture(scope="module")
def days(tmp_path_factory):
    """The paths of two days of 300 rows in files of equal sizes."""
    directory = tmp_path_factory.mktemp("days")
    return [str(small.make(directory / f"{seed}", rows=300, seed=seed)) for seed in range(2)]


def _train(model, data, *more):
    status = cli.main(["train", f"--model_dir={model}", f"--train_data={data}", *FLAGS, *more])
    return status, checkpoints.latest_checkpoint(str(model))


def _seen(monkeypatch):
    """Returns the list to which the ids of all batches are appended that a training reads."""
    seen, read = [], reader.BatchReader.__iter__

    def recording(self):
        for batch in read(self):
            seen.extend(map(str, batch.ids["row"][: batch.size]))
            yield batch

    monkeypatch.setattr(reader.BatchReader, "__iter__", recording)
    return seen


def test_each_row_of_the_next_day_is_read_once_also_in_parts(days, tmp_path, monkeypatch, caplog, capsys):
    caplog.set_level("INFO")
    first, second = days
    assert _train(tmp_path, first, "--next_data")[1].step == 10  # On the first day it changes nothing.
    status, _ = _train(tmp_path, second)
    said = capsys.readouterr().err
    assert status == 1 and all(words in said for words in ("set next_data", "set warm_start", "another model_dir"))
    seen = _seen(monkeypatch)
    status, saved = _train(tmp_path, second, "--next_data", "--max_steps=4")
    assert (status, saved.step, saved.data_begin, saved.examples) == (0, 14, 10, 300 + 4 * 32)
    assert "step 10, with the next data, from its beginning" in caplog.text
    del seen[4 * 32 :]
    status, saved = _train(tmp_path, second, "--next_data")
    assert (saved.step, saved.data_begin, saved.examples) == (20, 10, 600)
    assert sorted(seen) == sorted(f"r{i}" for i in range(300))
    for more in ("--next_data", "--next_data --max_steps=10", "--max_steps=10"):
        assert _train(tmp_path, second, *more.split())[1].step == 20
    assert _train(tmp_path, first, "--next_data")[1].data_begin == 20


def test_rates_and_early_stopping_begin_anew_with_the_next_day(days, tmp_path, caplog):
    # Nothing is learned, so each day's second evaluation ends its training, when the rate is 0 too.
    stop = ["--eval_steps=2", "--best_metric=logloss", "--early_stopping_patience=1", "--epochs=3"]
    frozen = ["--learning_rate=0", "--embedding_learning_rate=0", "--embedding_stddev=0"]
    rate = ["--lr_schedule=linear", "--lr_schedule_params=decay_steps=4", *frozen]
    caplog.set_level("INFO")
    for day, begin in zip(days, (0, 4), strict=True):
        saved = _train(tmp_path, day, *stop, *rate, "--next_data", f"--eval_data={day}")[1]
        assert (saved.data_begin, saved.step) == (begin, begin + 4)
        assert f"linear, 1 at step {begin} and 0 at step" in caplog.text
        assert EvaluationHistory.load(tmp_path).best["step"] == find_checkpoint(str(tmp_path), "auto").step == begin + 2
    assert _train(tmp_path, day, *stop, *rate, "--next_data", f"--eval_data={day}")[1].step == 8
    assert _train(tmp_path, days[0], "--next_data", "--max_steps=1")[1].step == 9
    assert find_checkpoint(str(tmp_path), "auto").step == 9
    assert "the best by logloss" in caplog.text and "before the current data" in caplog.text


def test_a_day_without_evaluation_data_has_the_length_of_such_data(days, tmp_path, caplog, capsys):
    caplog.set_level("INFO")
    plain = ("--recipe=data", f"--eval_data={days[1]}", "--epochs=2")
    assert _train(tmp_path, days[0], *plain)[0] == 0
    status, saved = _train(tmp_path, days[0], "--recipe=data", "--epochs=2")
    said = capsys.readouterr().err.splitlines()[-1]
    assert status == 1 and "--eval_data is missing" in said and "by --next_data" in said
    assert _train(tmp_path, days[1], "--recipe=data", "--next_data", "--epochs=1")[1].step == saved.step + 10
    assert "lr_schedule=linear" in caplog.text.rpartition("keeps what its training began with")[2]


def test_a_model_of_the_fixed_defaults_keeps_them_on_the_next_day(days, tmp_path):
    assert _train(tmp_path, days[0])[1].step == 10
    assert _train(tmp_path, days[1], "--recipe=data", "--next_data")[1].step == 20
    assert json.loads((tmp_path / "flags.json").read_text())["flags"]["lr_schedule"] == "cooldown"


def test_new_null_values_are_the_model_s_from_the_next_day_on(tmp_path):
    spec = 'name = "days"\nlabel = {column = "y"}\ndense = [{name = "x"}]\nsparse = [{name = "c", dim = 2}]\n'
    for rows, day, form in ((50, "one", ""), (60, "two", '[csv]\nnull_values = ["", "NULL"]\n')):
        (tmp_path / "day.csv").write_text("y,x,c\n" + "1,1,a\n0,2,NULL\n" * rows)
        (tmp_path / f"{day}.toml").write_text(spec + form)
        source = f"--input={tmp_path / 'day.csv'}", f"--feature_spec={tmp_path / f'{day}.toml'}"
        assert cli.main(["convert", "--format=csv", *source, f"--output={tmp_path / day}"]) == 0
        assert _train(tmp_path / "model", tmp_path / day, "--next_data")[0] == 0
    assert load_features(str(tmp_path / "model"))[0].csv.null_values == ("", "NULL")
