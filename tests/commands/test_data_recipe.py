"""`--recipe=data`: defaults by the rows of the training data, and what replaces them."""

import dataclasses
import json
import logging

import pytest

from ctr_trainer import cli
from ctr_trainer.commands.experiment import data_recipe, flags, recipes
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.recipes import Choice, Facts, choices
from ctr_trainer.settings.by_flag import by_flag, replaced
from ctr_trainer.settings.training_configs import EvaluationConfig

SMALL = Facts(rows=8_000, rarer=80, keys=5_000, has_validation=True)


def _values(facts):
    return {name: value for each in choices(facts) for name, value in each.values.items()}


def _train(data, model_dir, *more):
    own = [f"--train_data={data}", f"--model_dir={model_dir}", "--hidden_units=4", "--threads=1"]
    assert cli.main(["train", *own, *more]) == 0
    return json.loads((model_dir / "flags.json").read_text())


@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.parametrize("rows", [8_000, 50_001, 1_000_000])
@pytest.mark.parametrize("keys", [None, 100, 10_000_000])
def test_each_choice_is_a_flag_of_train_with_an_accepted_value(rows, keys, validation):
    values = _values(Facts(rows=rows, keys=keys, has_validation=validation))
    assert {name.partition("=")[0] for name in values} <= set(flags.define(flags.TRAINING))
    taken = by_flag(replaced(Experiment(), values)) | by_flag(replaced(EvaluationConfig(), values))
    assert {name: taken[name] for name in values} == values


def test_more_rows_get_larger_batches_and_large_data_keep_the_defaults():
    assert choices(dataclasses.replace(SMALL, rows=recipes.LARGE_ROWS + 1)) == []
    middle = _values(dataclasses.replace(SMALL, rows=recipes.LARGE_ROWS))
    assert _values(SMALL)["batch_size"] < middle["batch_size"] < 1024
    assert _values(SMALL)["dropout"] > middle["dropout"] > 0


def test_without_validation_data_nothing_is_evaluated():
    assert {"eval_epochs", "best_metric"}.isdisjoint(_values(dataclasses.replace(SMALL, has_validation=False)))
    assert _values(dataclasses.replace(SMALL, several_labels=True))["best_metric"] == "loss"


@pytest.mark.parametrize(
    ("rows", "keys", "epochs"),
    [
        (100, 10, 100),
        (1_600, 160, 25),
        (1_600, 161, 20),
        (1_600, 4_800, 20),
        (1_600, 4_801, 12),
        (10_000, 50, 10),
        (10_000, 5_001, 8),
        (10_000, 30_001, 6),
        (10_000, None, 6),
        (40_000, 50, 6),
    ],
)
def test_without_validation_data_epochs_fall_with_the_root_of_the_rows(rows, keys, epochs):
    assert _values(Facts(rows=rows, keys=keys))["epochs"] == epochs
    assert _values(Facts(rows=50_001, keys=keys))["epochs"] == 3


def test_if_an_outcome_is_rare_the_log_loss_decides_and_not_the_auc():
    assert _values(SMALL)["best_metric"] == "logloss"
    assert _values(dataclasses.replace(SMALL, rarer=4_000))["best_metric"] == "auc"
    assert _values(dataclasses.replace(SMALL, rarer=None))["best_metric"] == "auc"


def test_tiny_data_have_more_epochs_between_evaluations():
    tiny, usual = _values(dataclasses.replace(SMALL, rows=300, keys=50)), _values(SMALL)
    assert (tiny["eval_epochs"], usual["eval_epochs"]) == (7, 1)  # Three steps an epoch, and 63.


@pytest.mark.parametrize("has_validation", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys", "is_near_linear"),
    [(2_000, 50, True), (2_000, None, True), (2_001, 200, False), (2_001, 201, True), (2_001, None, False)],
)
def test_few_rows_or_rare_keys_get_a_small_network_and_small_row_steps(rows, keys, is_near_linear, has_validation):
    values = _values(Facts(rows=rows, keys=keys, has_validation=has_validation))
    chosen = values["embedding_optimizer"], values["dropout"], values.get("hidden_units")
    assert chosen == (("adam", 0.5, (128,)) if is_near_linear else ("adagrad", 0.3, None))


def test_keys_that_occur_once_get_small_first_steps():
    tiny, small, rare = (
        _values(Facts(rows=rows, keys=keys)) for rows, keys in ((2_000, 6_001), (2_001, 6_004), (2_001, 6_003))
    )
    assert (tiny["embedding_optimizer"], tiny["embedding_optimizer_params=initial_accumulator"]) == ("adagrad", 1e-2)
    assert (small["embedding_optimizer"], small["embedding_optimizer_params=initial_accumulator"]) == ("adagrad", 1e-3)
    assert rare["embedding_optimizer"] == "adam"
    assert tiny["hidden_units"] == small["hidden_units"] == rare["hidden_units"]


def test_a_directory_keeps_its_network_and_a_warm_start_takes_the_others(tmp_path, data, capsys):
    def train(name, *more):
        own = [f"--train_data={data}", f"--model_dir={tmp_path / name}", "--threads=1", "--epochs=1"]
        own += [f"--eval_data={data}"]
        assert cli.main(["train", *own, *more]) == 0
        return json.loads((tmp_path / name / "flags.json").read_text())["flags"]["hidden_units"]

    assert train("small") == train("small", "--epochs=2") == [128]
    assert cli.main(["evaluate", f"--model_dir={tmp_path / 'small'}", f"--eval_data={data}"]) == 0
    wide = train("wide", "--hidden_units=256,128,64")
    assert train("from_wide", f"--warm_start={tmp_path / 'wide'}") == wide


def test_a_small_training_takes_what_suits_its_rows_and_says_so(tmp_path, data, caplog):
    caplog.set_level(logging.INFO)
    said = _train(data, tmp_path / "model", f"--eval_data={data}", "--epochs=2", "--eval_epochs=1", "--best_metric=auc")
    assert said["chosen"]["batch_size"] == said["flags"]["batch_size"] == 128
    assert "epochs" not in said["chosen"] and said["flags"]["early_stopping_patience"] == 0
    (line,) = [message for message in caplog.messages if message.startswith("recipe data: 300 rows")]
    assert "small data, so batch_size=128, optimizer=adam" in line


def test_evaluate_takes_the_best_checkpoint_if_the_recipe_chose_to_keep_it(tmp_path, data, capsys, monkeypatch):
    length = Choice({"epochs": 3, "eval_epochs": 1, "best_metric": "auc"})
    monkeypatch.setattr(data_recipe, "choices", lambda facts: [length])
    still = ("--learning_rate=0", "--embedding_learning_rate=0", "--batch_size=100")  # So the first stays the best.
    _train(data, tmp_path / "model", f"--eval_data={data}", *still)
    assert cli.main(["evaluate", f"--model_dir={tmp_path / 'model'}", f"--eval_data={data}"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["global_step"] == 3


@pytest.mark.parametrize(
    ("given", "in_flagfile", "stay", "change"),
    [
        ("--batch_size=64", True, {"batch_size": 64}, {"optimizer": "adam", "dropout": 0.5}),
        (
            "--learning_rate=0.05",
            False,
            {"learning_rate": 0.05, "optimizer": "adagrad"},
            {"embedding_learning_rate": 0.001},
        ),
        ("--embedding_l2=0", True, {"embedding_learning_rate": 0.05, "embedding_l2": 0.0}, {"l2": 0.002}),
        ("--max_steps=4", False, {"epochs": 1, "max_steps": 4, "lr_schedule": "cooldown"}, {"batch_size": 128}),
        ("--recipe=none", True, {"batch_size": 1024, "epochs": 1, "optimizer": "adagrad", "dropout": 0.0}, {}),
    ],
)
def test_a_given_flag_wins_with_what_belongs_to_it(tmp_path, data, given, in_flagfile, stay, change):
    (tmp_path / "own.flags").write_text(given)
    found = _train(data, tmp_path / "model", f"--flagfile={tmp_path / 'own.flags'}" if in_flagfile else given)
    assert {name: found["flags"][name] for name in stay} == stay
    assert {name: found["flags"][name] for name in change} == change
    assert found.get("chosen", {}).keys().isdisjoint(stay)


def test_a_model_keeps_what_its_training_began_with_whatever_the_data_are_now(tmp_path, data, monkeypatch):
    began = _train(data, tmp_path / "model")
    monkeypatch.setattr(data_recipe, "choices", lambda facts: pytest.fail("decided anew"))
    again = _train(data, tmp_path / "model", "--epochs=47", "--dropout=0.1")
    assert again["flags"]["optimizer"] == "adam" and again["flags"]["batch_size"] == 128
    assert (again["flags"]["dropout"], again["flags"]["epochs"]) == (0.1, 47)
    assert again["chosen"].items() <= began["chosen"].items()

    _train(data, tmp_path / "fixed", "--recipe=none", "--optimizer=adam")
    fixed = _train(data, tmp_path / "fixed", "--epochs=2")
    assert "chosen" not in fixed and fixed["flags"]["batch_size"] == 1024


def test_a_stream_and_another_recipe_keep_the_fixed_defaults(tmp_path, data):
    experiment = replaced(Experiment(), {"train_data": "kafka://127.0.0.1:1/clicks"})
    assert data_recipe.decide(frozenset(), experiment) == ({}, "")
    experiment = replaced(Experiment(), {"train_data": str(data), "recipe": "none"})
    assert data_recipe.decide(frozenset(), experiment) == ({}, "")
