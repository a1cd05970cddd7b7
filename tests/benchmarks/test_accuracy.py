"""What `benchmarks/accuracy.py` gives to peers and says of the results; the measurement itself is no test."""

import json
import pathlib

import numpy as np
import pytest

from ctr_trainer.commands.train import GROUPS
from ctr_trainer.experiment import flags

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def accuracy(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import accuracy

    return accuracy


def line(side, data, model, seed, auc, **more):
    return {"side": side, "data": data, "model": model, "seed": seed, "auc": auc, **more}


def test_peers_get_the_rows_of_our_parts_with_ids_of_the_training_part(accuracy, movielens, tmp_path):
    data = accuracy.accuracy_data
    parts = data.prepare("movielens-time", movielens, tmp_path / "work")
    data.export_arrays(parts, tmp_path / "arrays.npz")
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
    assert not arrays["bucketised"].any()
    genres = arrays["train/bag/genres"]
    assert genres.shape == (8, 2) and int(arrays["sizes/genres"]) == 4
    drama, comedy = genres[0]
    assert genres[1].tolist() == [comedy, 0] and genres[6].tolist() == [0, 0] and drama != comedy


def test_what_training_did_not_see_is_0(accuracy):
    ids = accuracy.accuracy_data._ids(np.array([7, 8, 0, 99]), np.array([7, 9, 99]))
    assert ids.tolist() == [1, 0, 0, 3]


def test_missing_real_data_are_named(accuracy, tmp_path):
    with pytest.raises(SystemExit, match="adult.data, adult.test.*--real_data"):
        accuracy.accuracy_data.prepare("adult", tmp_path, tmp_path / "work")


def test_ours_meets_its_target_up_to_a_thousandth_below_the_peer(accuracy):
    lines = [line("ours", "adult", "deepfm", seed, auc) for seed, auc in ((1, 0.92), (2, 0.922))]
    lines += [line("peer", "adult", "deepfm", seed, auc, library="PyTorch") for seed, auc in ((1, 0.921), (2, 0.9228))]
    lines += [line("ours", "adult", "lr", 1, 0.9), line("peer", "adult", "lr", 1, 0.9015, library="scikit-learn")]
    lines += [line("peer", "adult", "lightgbm", 1, 0.927, library="LightGBM")]
    found = accuracy.summary(lines)["adult"]
    assert found["deepfm"] == {
        "auc": 0.921,
        "spread": 0.002,
        "peer": 0.9219,
        "peer_spread": 0.0018,
        "library": "PyTorch",
        "met": True,
        "seeds": 2,
    }
    assert not found["lr"]["met"]
    assert found["lightgbm"]["best"] == "deepfm" and not found["lightgbm"]["met"]  # 0.006 below
    text = accuracy.table(lines)
    assert "| adult | deepfm | 0.9210 | 0.0020 | PyTorch | 0.9219 | 0.0018 | -0.0009 | met |" in text
    assert "| adult | best: deepfm | 0.9210 |  | LightGBM | 0.9270 |  | -0.0060 | missed |" in text


def test_each_library_with_a_model_is_a_peer_of_its_own(accuracy):
    lines = [line("ours", "adult", "deepfm", 1, 0.921)]
    lines += [line("peer", "adult", "deepfm", 1, 0.922, library="PyTorch")]
    lines += [line("peer", "adult", "deepfm", seed, auc, library="FuxiCTR") for seed, auc in ((1, 0.923), (2, 0.924))]
    found = accuracy.summary(lines)["adult"]["deepfm"]
    assert found["peer"] == 0.922 and found["library"] == "PyTorch" and found["met"]
    assert found["others"] == {"FuxiCTR": {"peer": 0.9235, "peer_spread": 0.001, "met": False}}
    text = accuracy.table(lines)
    assert "| adult | deepfm | 0.9210 |  | PyTorch | 0.9220 |  | -0.0010 | met |" in text
    assert "| adult | deepfm | 0.9210 |  | FuxiCTR | 0.9235 | 0.0010 | -0.0025 | missed |" in text


def test_a_library_that_is_chosen_is_run_and_shown_alone(accuracy, monkeypatch):
    monkeypatch.setattr("sys.argv", ["accuracy.py", "--libraries=FuxiCTR,LightGBM", "--data=adult"])
    flags = accuracy._flags()
    peers = [line("peer", "adult", "deepfm", 1, 0.9, library=library) for library in ("PyTorch", "FuxiCTR")]
    shown = [accuracy._is_selected(each, flags) for each in (*peers, line("ours", "adult", "deepfm", 1, 0.9))]
    assert shown == [False, True, True]
    monkeypatch.setattr("sys.argv", ["accuracy.py", "--libraries=Torch"])
    with pytest.raises(SystemExit):
        accuracy._flags()


@pytest.mark.parametrize("data", ["movielens-history", "movielens-liked"])
def test_din_with_histories_has_to_beat_deepfm_without(accuracy, data):
    lines = [line("ours", "movielens-time", "deepfm", 1, 0.78), line("ours", data, "din", 1, 0.79)]
    found = accuracy.summary(lines)[data]["din"]
    assert found["peer"] == 0.78 and found["met"]
    lines[1]["auc"] = 0.78
    assert not accuracy.summary(lines)[data]["din"]["met"]
    assert accuracy.models_of(data, accuracy.MODELS) == ["din"]
    assert "din" not in accuracy.models_of("movielens-time", accuracy.MODELS)


def test_results_stand_in_their_file_until_they_are_forgotten(accuracy, tmp_path):
    results = accuracy.Results(tmp_path / "new" / "r.jsonl")
    results.add(**line("ours", "adult", "lr", 1, 0.9))
    results.add(**line("peer", "adult", "lr", 1, 0.9))
    again = accuracy.Results(tmp_path / "new" / "r.jsonl")
    assert again.has(side="ours", data="adult", seed=1) and not again.has(side="ours", seed=2)
    again.forget(side="ours", model="lr")
    assert [json.loads(text)["side"] for text in (tmp_path / "new" / "r.jsonl").read_text().splitlines()] == ["peer"]


def test_each_model_has_a_flagfile_for_each_data_set_that_chooses_by_validation(accuracy):
    import accuracy_ours

    for data in accuracy.accuracy_data.DATA:
        for model in accuracy.models_of(data, accuracy.MODELS):
            values = flags.define(GROUPS)
            values(["test", f"--flagfile={accuracy_ours.flagfile(data, model)}"])
            assert values["model"].value == model and values["best_metric"].value == "auc", (data, model)
            assert not values["eval_data"].value.endswith("data/movielens/test"), (data, model)
