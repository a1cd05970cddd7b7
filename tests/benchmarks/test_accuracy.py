"""The data sets and the results that the parts of `benchmarks/model_quality.py` share."""

import json
import pathlib

import numpy as np
import pytest

from ctr_trainer.commands.train import GROUPS
from ctr_trainer.experiment import flags

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"
# The models that have a flagfile, by data set.
OF_ROWS, OF_HISTORIES = ("lr", "wide_deep", "deepfm", "dcn_v2"), ("din",)


@pytest.fixture
def accuracy_data(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import accuracy_data

    return accuracy_data


def test_peers_get_the_rows_of_our_parts_with_ids_of_the_training_part(accuracy_data, movielens, tmp_path):
    parts = accuracy_data.prepare("movielens-time", movielens, tmp_path / "work")
    accuracy_data.export_arrays(parts, tmp_path / "arrays.npz")
    arrays = np.load(tmp_path / "arrays.npz")
    assert arrays["train/labels"].tolist() == [1, 0, 1, 0, 1, 0, 1, 1]
    assert [arrays[f"{part}/labels"].tolist() for part in ("valid", "test")] == [[0], [1]]
    user, movie = arrays["train/ids"].T[:2]
    same = [1, 1, 2, 2, 1, 2, 1, 3]
    assert all((user[i] == user[j]) == (same[i] == same[j]) for i in range(8) for j in range(8))
    assert sorted(set(movie)) == [1, 2, 3, 4]
    # In test user 2 rates movie 10, which both are in the training part.
    assert arrays["test/ids"][0, :2].tolist() == [user[2], movie[0]]
    assert arrays["sizes"][:2].tolist() == [4, 5]  # with 0
    genres = arrays["train/bag/genres"]
    assert genres.shape == (8, 2) and int(arrays["sizes/genres"]) == 4
    drama, comedy = genres[0]
    assert genres[1].tolist() == [comedy, 0] and genres[6].tolist() == [0, 0] and drama != comedy


def test_what_training_did_not_see_is_0(accuracy_data):
    ids = accuracy_data._ids(np.array([7, 8, 0, 99]), np.array([7, 9, 99]))
    assert ids.tolist() == [1, 0, 0, 3]


def test_missing_real_data_are_named(accuracy_data, tmp_path):
    with pytest.raises(SystemExit, match="adult.data, adult.test.*--real_data"):
        accuracy_data.prepare("adult", tmp_path, tmp_path / "work")


def test_a_run_whose_result_stands_in_the_file_is_not_repeated(accuracy_data, tmp_path):
    path, ran = tmp_path / "new" / "r.jsonl", []

    def run(auc=0.9):
        ran.append(auc)
        return {"auc": auc}

    for _ in range(2):
        of = accuracy_data.Results(path)
        assert of.once(dict(data="adult", seed=1), run, auc=0.8) == {"data": "adult", "seed": 1, "auc": 0.8}
        assert of.has(data="adult", seed=1) and not of.has(seed=2)
    assert len(ran) == 1
    of.once(dict(data="adult", seed=2), run)
    lines = path.read_text().splitlines()
    assert len(ran) == 2 and [json.loads(text)["seed"] for text in lines] == [1, 2]


def test_each_model_has_a_flagfile_for_each_data_set_that_chooses_by_validation(accuracy_data):
    import accuracy_ours

    for data in accuracy_data.DATA:
        for model in OF_HISTORIES if data in ("movielens-history", "movielens-liked") else OF_ROWS:
            values = flags.define(GROUPS)
            values(["test", f"--flagfile={accuracy_ours.flagfile(data, model)}"])
            assert values["model"].value == model and values["best_metric"].value == "auc", (data, model)
            assert not values["eval_data"].value.endswith("data/movielens/test"), (data, model)
