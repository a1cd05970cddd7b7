"""What `benchmarks/model_quality.py` prints of its parts; the measurements themselves are no tests."""

import itertools
import json
import types

import model_quality
import pytest

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.train import GROUPS


def experiment(*given):
    """Returns the `Experiment` and the `EvaluationConfig` that flags of `train` make."""
    return flags.parse(GROUPS, given)[:2]


def test_the_last_line_has_the_keys_of_all_parts(monkeypatch, tmp_path, capsys):
    keys, found = model_quality.PARTS["best"].keys, {"adult_best_auc": 0.92}
    monkeypatch.setitem(model_quality.PARTS, "best", model_quality.Part("", keys, lambda flags: found))
    model_quality.main([f"--work={tmp_path / 'work'}", "--parts=best", "--seeds=1,2"])
    shown = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (shown["adult_best_auc"], shown["movielens_history_best_auc"], shown["failed"]) == (0.92, None, [])


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
            found, evaluation = experiment(f"--flagfile={file}")
            assert found.model.model == model and evaluation.best_metric == "auc", (data, model)
            assert found.model.recipe == "none" and "test" not in found.data.train_data
    root = model_quality.sides.ROOT
    patterns = (
        "configs/adult_*",
        *(f"{d}/movielens/{k}_*" for d in ("examples", "benchmarks") for k in ("history", "means")),
    )
    there = {file.name for pattern in patterns for file in root.glob(pattern)}
    assert there == known
