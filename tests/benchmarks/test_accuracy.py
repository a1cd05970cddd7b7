"""The data sets and the results that the parts of `benchmarks/model_quality.py` share."""

import json

import accuracy_data
import pytest
import quality_defaults


def test_the_regression_gets_one_hot_values_of_the_training_part(movielens, tmp_path):
    parts = accuracy_data.prepare("movielens-time", movielens, tmp_path / "work")
    columns, labels = quality_defaults.one_hot(parts)
    assert labels["train"].tolist() == [1, 0, 1, 0, 1, 0, 1, 1]
    assert [labels[part].tolist() for part in ("valid", "test")] == [[0], [1]]
    train, test = columns["train"].toarray(), columns["test"].toarray()
    # The first two rows are of user 1, movies 10 (two genres) and 20 (one of these); movie 40 has no genre.
    one, two, forty = train[0], train[1], train[6]
    assert one.sum() - forty.sum() == pytest.approx(1) and two.sum() == pytest.approx(one.sum())
    assert sorted(set(one[one > 0])) == [0.5, 1] and set(two[two > 0]) == {1}
    # In the test part, user 2 rates movie 10, which both are in the training part.
    assert test.shape[1] == train.shape[1] and test.sum() == pytest.approx(one.sum())


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
    assert asked[2] == ["evaluate", "--eval_data=E", "--exact_auc", "--checkpoint=best"]
