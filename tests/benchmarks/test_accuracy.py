"""The data sets and the results that the parts of `benchmarks/model_quality.py` share."""

import json

import accuracy_data
import pytest

from ctr_trainer.data.dataset import open_dataset


def test_movielens_is_split_by_time_and_converted_once(movielens, tmp_path):
    parts = accuracy_data.prepare("movielens-time", movielens, tmp_path / "work")
    assert [open_dataset(part).rows for part in (parts.train, parts.valid, parts.test)] == [8, 1, 1]
    (movielens / "movielens" / "ratings.dat").write_text("")
    assert accuracy_data.prepare("movielens-time", movielens, tmp_path / "work") == parts


def test_missing_real_data_are_named(tmp_path):
    with pytest.raises(SystemExit, match="adult.data, adult.test.*--real_data"):
        accuracy_data.prepare("adult", tmp_path, tmp_path / "work")


def test_a_run_whose_result_stands_in_the_file_is_not_repeated(tmp_path):
    path, ran = tmp_path / "new" / "r.jsonl", []

    def run():
        ran.append(True)
        return {"auc": 0.9}

    for _ in range(2):
        assert accuracy_data.once(path, run, data="adult", seed=1) == {"data": "adult", "seed": 1, "auc": 0.9}
    assert len(ran) == 1
    accuracy_data.once(path, run, data="adult", seed=2)
    lines = path.read_text().splitlines()
    assert len(ran) == 2 and [json.loads(text)["seed"] for text in lines] == [1, 2]


def test_a_run_is_tested_once_at_its_best_epoch(monkeypatch, tmp_path):
    asked = []

    def call(command, **shows_log):
        asked.append([each for each in command[3:] if "dir=" not in each])
        valid = "--eval_data=V" in command
        return "a table\n" + json.dumps({"auc": 0.7 if valid else 0.8, "logloss": 0.5, "copc": 1.0, "loss": 0.5})

    monkeypatch.setattr(accuracy_data.sides, "call", call)
    monkeypatch.setattr(accuracy_data.sides, "summary", lambda model_dir: {"examples_per_sec": 5})
    found = accuracy_data.train_and_test(accuracy_data.Parts("T", "V", "E"), 7, "--model=lr")
    assert found == {"auc": 0.8, "logloss": 0.5, "copc": 1.0, "valid": 0.7}
    assert [line[0] for line in asked] == ["train", "evaluate", "evaluate"]
    assert {"--model=lr", "--seed=7", "--train_data=T", "--eval_data=V"} < set(asked[0])
    assert asked[2] == ["evaluate", "--eval_data=E", "--checkpoint=best"]
