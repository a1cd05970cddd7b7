"""The data sets and the results that the parts of `benchmarks/model_quality.py` share."""

import json

import accuracy_data
import numpy as np
import pytest


def test_peers_get_the_rows_of_our_parts_with_ids_of_the_training_part(movielens, tmp_path):
    parts = accuracy_data.prepare("movielens-time", movielens, tmp_path / "work")
    accuracy_data.export_arrays(parts, tmp_path / "arrays.npz")
    arrays = np.load(tmp_path / "arrays.npz")
    assert arrays["train/labels"].tolist() == [1, 0, 1, 0, 1, 0, 1, 1]
    assert [arrays[f"{part}/labels"].tolist() for part in ("valid", "test")] == [[0], [1]]
    user, movie = arrays["train/ids/id0"][:, 0], arrays["train/ids/id1"][:, 0]
    same = [1, 1, 2, 2, 1, 2, 1, 3]
    assert all((user[i] == user[j]) == (same[i] == same[j]) for i in range(8) for j in range(8))
    assert sorted(set(movie)) == [1, 2, 3, 4]
    # In test user 2 rates movie 10, which both are in the training part.
    assert (arrays["test/ids/id0"][0, 0], arrays["test/ids/id1"][0, 0]) == (user[2], movie[0])
    assert (int(arrays["sizes/id0"]), int(arrays["sizes/id1"])) == (4, 5)  # with 0
    genres = arrays["train/ids/genres"]
    assert genres.shape == (8, 2) and int(arrays["sizes/genres"]) == 4
    drama, comedy = genres[0]
    assert genres[1].tolist() == [comedy, 0] and genres[6].tolist() == [0, 0] and drama != comedy


def test_what_training_did_not_see_is_0_and_missing_real_data_are_named(tmp_path):
    ids = accuracy_data._ids(np.array([7, 8, 0, 99]), np.array([7, 9, 99]))
    assert ids.tolist() == [1, 0, 0, 3]
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
