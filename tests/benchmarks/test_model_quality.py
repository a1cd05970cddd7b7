"""What `benchmarks/model_quality.py` prints of its parts; the measurements themselves are no tests."""

import itertools
import json
import types

import model_quality
import pytest
import quality_defaults

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.train import GROUPS


def experiment(*given):
    """Returns the `Experiment` that flags of `train` make, and the flags."""
    values = flags.define(GROUPS)
    values(["test", *given])
    return flags.read(GROUPS[0], values), values


def test_the_last_line_has_the_keys_of_all_parts(monkeypatch, tmp_path, capsys):
    part = model_quality.Part("", ("adult_best_auc",), lambda flags: {"adult_best_auc": 0.9 + 0.01 * len(flags.seeds)})
    monkeypatch.setitem(model_quality.PARTS, "best", part)
    model_quality.main([f"--work={tmp_path / 'work'}", "--parts=best", "--seeds=1,2"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["adult_best_auc"] == 0.92 and found["failed"] == []
    assert found["defaults_minus_lr_min"] is None


@pytest.fixture
def measured(monkeypatch):
    """Has `train_and_test` return figures that a test gives by (data set, model, seed), and counts its calls."""
    monkeypatch.setattr(model_quality, "prepare", lambda data, *given: data)
    figures, calls = {}, []

    def train_and_test(parts, seed, *given):
        (model,) = (flag.partition("=")[2] for flag in given if flag.startswith("--model="))
        calls.append((parts, model, seed))
        return {"logloss": 0.5, "copc": 1.0, **figures[calls[-1]]}

    monkeypatch.setattr(model_quality, "train_and_test", train_and_test)
    return types.SimpleNamespace(figures=figures, calls=calls)


def test_one_flagfile_is_chosen_by_validation_of_those_of_both_specs(measured, tmp_path):
    measured.figures["movielens-history", "din", 1] = {"valid": 0.77, "auc": 0.80}
    measured.figures["movielens-means", "din", 1] = {"valid": 0.78, "auc": 0.79}
    asked = types.SimpleNamespace(work=tmp_path, data=["movielens"], models=["din"], seeds=[1], real_data="")
    assert model_quality.best(asked) == {"movielens_history_best_auc": 0.79}
    asked.data = ["movielens-history"]
    assert model_quality.best(asked) == {"movielens_history_best_auc": 0.80}
    assert len(measured.calls) == 2


def test_every_flagfile_of_the_part_best_chooses_by_validation():
    known = set()
    for data, models in itertools.chain(*(each.items() for each in model_quality.BEST.values())):
        for model in models:
            file = model_quality.flagfile(data, model)
            known.add(file.name)
            found, values = experiment(f"--flagfile={file}")
            assert found.model.model == model and values["best_metric"].value == "auc", (data, model)
            assert values["recipe"].value == "none" and "test" not in values["train_data"].value
    configs = model_quality.sides.ROOT / "configs"
    there = {
        file.name for name in ("adult", "movielens_history", "movielens_means") for file in configs.glob(f"{name}_*")
    }
    assert there == known


def test_the_difference_of_default_settings_is_the_mean_over_the_asked_seeds(capsys):
    line = dict(data="wine", model="deepfm", logloss=0.5, copc=1.0, lr_auc=0.8, lr_logloss=0.4, lr_copc=1.0)
    runs = [{**line, "seed": seed, "auc": auc} for seed, auc in ((1, 0.9), (2, 0.8))]
    assert quality_defaults._difference("wine", runs) == pytest.approx(0.05)
    said = json.loads(capsys.readouterr().out)
    assert (said["aside"], said["auc"], said["auc_less_lr"]) == (True, 0.85, [0.1, 0.0])
    assert set(quality_defaults.ASIDE) < set(quality_defaults.DATA)


def test_a_sample_has_the_asked_rows_and_share_of_positives(tmp_path):
    (tmp_path / "rows").write_text("".join(f"{number}\n" for number in range(1000)))

    def sample(seed, share):
        found = quality_defaults._sample(tmp_path / "rows", lambda line: int(line) < 300, 200, seed, share)
        return found.decode().splitlines()

    one = sample(1, 0.01)
    assert len(set(one)) == 200 and sum(int(line) < 300 for line in one) == 2
    assert one != sample(2, 0.01)
    assert len(set(sample(1, None))) == 200 and sum(int(line) < 300 for line in sample(1, None)) > 20
