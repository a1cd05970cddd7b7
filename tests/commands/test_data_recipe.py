"""`--recipe=data`: defaults by the rows of the training data, and what replaces them."""

import dataclasses
import json
import logging

import pytest
import tensorflow as tf

from ctr_trainer import cli
from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.commands.experiment import data_recipe, flags, recipes
from ctr_trainer.commands.experiment.checks import check_training
from ctr_trainer.commands.experiment.experiment import Experiment
from ctr_trainer.commands.experiment.recipes import Facts, choices
from ctr_trainer.models.estimator_spec import EstimatorSpec
from ctr_trainer.ranks import distributed
from ctr_trainer.settings.by_flag import by_flag, replaced
from ctr_trainer.settings.training_configs import EvaluationConfig
from tests import small

SMALL = Facts(rows=8_000, keys=5_000, has_validation=True)


def _values(facts, **given):
    return choices(facts, given)[0]


def _train(data, model_dir, *more):
    own = [f"--train_data={data}", f"--model_dir={model_dir}", "--hidden_units=4", "--threads=1"]
    assert cli.main(["train", *own, *more]) == 0
    return json.loads((model_dir / "flags.json").read_text())


@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.parametrize("rows", [8_000, 50_001, 1_000_000])
@pytest.mark.parametrize("keys", [None, 0, 100, 10_000_000])
def test_each_choice_is_a_flag_of_train_with_an_accepted_value(rows, keys, validation):
    values = _values(Facts(rows=rows, keys=keys, has_validation=validation, has_pieces=True))
    assert {name.partition("=")[0] for name in values} <= set(flags.define(flags.TRAINING))
    taken = by_flag(replaced(Experiment(), values)) | by_flag(replaced(EvaluationConfig(), values))
    assert {name: taken[name] for name in values} == values


def test_more_rows_get_larger_batches_and_large_data_keep_the_defaults():
    assert _values(dataclasses.replace(SMALL, rows=recipes.LARGE_ROWS + 1)) == {}
    middle = _values(dataclasses.replace(SMALL, rows=recipes.LARGE_ROWS))
    assert _values(SMALL)["batch_size"] < middle["batch_size"] < 1024
    assert _values(SMALL)["dropout"] > middle["dropout"] > 0


def test_evaluations_fit_the_size_and_the_labels():
    assert {"eval_epochs", "best_metric"}.isdisjoint(_values(dataclasses.replace(SMALL, has_validation=False)))
    tiny = _values(dataclasses.replace(SMALL, rows=300, keys=50))
    assert (tiny["eval_epochs"], _values(SMALL)["eval_epochs"]) == (7, 1)  # Three steps an epoch, and 63.
    assert {_values(dataclasses.replace(SMALL, rows=rows))["best_metric"] for rows in (8_000, 60_000)} == {"logloss"}
    assert _values(dataclasses.replace(SMALL, has_logloss=False))["best_metric"] == "loss"


def _loss_model_fn(features, labels, mode, params):
    """A model without logits, and so without the metric `logloss`."""
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(features["embedding"], [1, 2]) - labels))
    return EstimatorSpec(mode, loss=loss, optimizer=tf.compat.v1.train.GradientDescentOptimizer(0.01))


@pytest.mark.parametrize(
    ("labels", "flags"), [(2, ["--label=clicked"]), (1, [f"--model={__name__}:{_loss_model_fn.__name__}"])]
)
def test_a_model_without_the_metric_logloss_is_selected_by_its_loss(tmp_path, labels, flags):
    data = small.make(tmp_path, rows=100, labels=labels)
    said = _train(data, tmp_path / "model", f"--eval_data={data}", "--epochs=1", *flags)
    assert said["chosen"]["best_metric"] == "loss"


@pytest.mark.parametrize(
    ("rows", "keys", "epochs"),
    [
        (100, 10, 100),
        (1_600, 160, 25),
        (1_600, 161, 20),
        (1_600, 4_801, 12),
        (10_000, 50, 10),
        (10_000, 30_001, 6),
        (10_000, None, 6),
        (40_000, 50, 6),
    ],
)
def test_without_validation_data_epochs_fall_with_the_root_of_the_rows(rows, keys, epochs):
    assert _values(Facts(rows=rows, keys=keys))["epochs"] == epochs
    assert _values(Facts(rows=50_001, keys=keys))["epochs"] == 3


@pytest.mark.parametrize("has_validation", [False, True])
@pytest.mark.parametrize(
    ("rows", "keys", "is_near_linear"),
    [(2_000, 50, True), (2_000, None, True), (2_001, 200, False), (2_001, 201, True), (2_001, None, False)],
)
def test_few_rows_or_rare_keys_get_a_small_network_and_small_row_steps(rows, keys, is_near_linear, has_validation):
    values = _values(Facts(rows=rows, keys=keys, has_validation=has_validation))
    chosen = values["embedding_optimizer"], values["dropout"], values.get("hidden_units")
    assert chosen == (("adam", 0.5, (128,)) if is_near_linear else ("adagrad", 0.3, None))


@pytest.mark.parametrize(
    ("rows", "keys", "has_pieces", "model"),
    [
        *[(300, 0, True, "tabm"), (300, 30, True, "tabm"), (300, 31, True, None), (300, 30, False, None)],
        *[(50_001, 0, True, "tabm"), (50_001, 30, True, None), (1_000_001, 0, True, None)],
    ],
)
def test_numbers_in_pieces_choose_tabm_unless_keys_are_rare(rows, keys, has_pieces, model):
    values = _values(Facts(rows=rows, keys=keys, has_pieces=has_pieces))
    assert values.get("model") == model
    assert (values.get("l2"), values.get("dropout")) == (0.0, 0.1) or not model
    evaluated = _values(Facts(rows=rows, keys=keys, has_pieces=has_pieces, has_validation=True))
    waits = evaluated.get("early_stopping_patience"), evaluated.get(recipes.PATIENCE)
    assert waits == ((7, 3) if model else (3, 1) if evaluated else (None, None))


@pytest.mark.parametrize(("rows", "has_pieces", "passes"), [(3_800, True, 4), (3_800, False, 1), (1_900, True, 2)])
def test_evaluations_of_tabm_have_more_steps_between_them(rows, has_pieces, passes):
    values = _values(Facts(rows=rows, keys=0, has_pieces=has_pieces, has_validation=True))
    assert (values["eval_epochs"], values["epochs"]) == (passes, 40 * passes)


@pytest.mark.parametrize(
    ("given", "changed", "why"),
    [
        ({}, {}, ""),
        *(({}, {name: value}, "keys") for name, value in (("keys", None), ("keys", 10**6), ("can_share", False))),
        *(({name: value}, {}, f"--{name}") for name, value in (("embedding_service", "a:1"), ("sync_steps", 9))),
    ],
)
def test_all_rows_of_middle_data_take_all_steps_unless_they_need_a_service(given, changed, why):
    facts = dataclasses.replace(Facts(rows=60_000, keys=4_000, can_share=True), **changed)
    values, notes = choices(facts, given)
    chosen = values.get("embedding_service"), values["embedding_optimizer"], values["embedding_l2"]
    assert chosen == ((None, "adagrad", 1e-3) if why else ("shared", "dense_adagrad", 1e-2))
    assert bool(notes) == bool(why) and all(why in note for note in notes)


@pytest.mark.parametrize(("trained", "can_share"), [("true", True), ("false", False)])
def test_frozen_rows_cannot_take_every_step(tmp_path, trained, can_share):
    distributed.init()
    data = small.make_pretrained(tmp_path, rows=20, more=f"trained = {trained}\n")
    assert data_recipe.facts_of(replaced(Experiment(), {"train_data": str(data)})).can_share == can_share


def test_keys_that_occur_once_get_small_first_steps():
    tiny, small, rare = (
        _values(Facts(rows=rows, keys=keys)) for rows, keys in ((2_000, 6_001), (2_001, 6_004), (2_001, 6_003))
    )
    assert (tiny["embedding_optimizer"], tiny["embedding_optimizer_params=initial_accumulator"]) == ("adagrad", 1e-2)
    assert (small["embedding_optimizer"], small["embedding_optimizer_params=initial_accumulator"]) == ("adagrad", 1e-3)
    assert rare["embedding_optimizer"] == "adam"
    assert tiny["hidden_units"] == small["hidden_units"] == rare["hidden_units"]


def test_a_small_training_takes_what_suits_its_rows_and_says_so(tmp_path, data, caplog):
    caplog.set_level(logging.INFO)
    said = _train(data, tmp_path / "model", f"--eval_data={data}", "--epochs=2", "--eval_epochs=1", "--best_metric=auc")
    assert said["chosen"]["batch_size"] == said["flags"]["batch_size"] == 128
    assert "epochs" not in said["chosen"] and said["flags"]["early_stopping_patience"] == 3
    (line,) = [message for message in caplog.messages if message.startswith("recipe data: 300 rows")]
    assert "small data, so batch_size=128, early_stopping_patience=3" in line


@pytest.mark.parametrize(
    ("given", "value", "dropped"),
    [
        *(
            (name, 7, ())
            for name in ("batch_size", "epochs", "eval_epochs", "learning_rate", "embedding_l2", "dropout")
        ),
        *(("best_metric", "auc", ()), ("optimizer", "adam", ()), ("early_stopping_patience", 5, ())),
        ("optimizer", "adagrad", ("learning_rate",)),
        ("optimizer_params=initial_accumulator", 0.1, ("optimizer", "learning_rate")),
        ("embedding_optimizer", "ftrl", ("embedding_learning_rate", "embedding_optimizer_params=initial_accumulator")),
        ("early_stopping_patience", 1, tuple(recipes.PLATEAU)),
        ("lr_schedule", "constant", (recipes.PATIENCE, recipes.DECAY_RATE)),
        ("lr_schedule_params=decay_steps", 100.0, tuple(recipes.PLATEAU)),
        ("eval_steps", 50, ("eval_epochs",)),
    ],
)
def test_a_given_flag_replaces_itself_and_what_makes_no_sense_with_it(given, value, dropped):
    facts = dataclasses.replace(SMALL, keys=50)
    all_values, (values, notes) = _values(facts), choices(facts, {given: value})
    assert values == {name: each for name, each in all_values.items() if name not in (given, *dropped)}
    assert notes == ([f"not {', '.join(sorted(dropped))}, because of --{given}"] if dropped else [])


@pytest.mark.parametrize("given", [{"eval_steps": 0}, {"eval_epochs": 0}, {"best_metric": ""}])
def test_a_training_without_evaluations_by_its_flags_has_no_early_stopping(given):
    values = _values(SMALL, **given)
    assert values["lr_schedule"] == "linear" and not {"early_stopping_patience", "eval_epochs"} & {*values}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("--early_stopping_patience=5", {"epochs": 40, "best_metric": "logloss", "lr_schedule": "plateau"}),
        ("--lr_schedule_params=patience=2", {"early_stopping_patience": 5, recipes.DECAY_RATE: 0.2}),
        ("--lr_schedule_params=decay_rate=0.5", {"early_stopping_patience": 3, recipes.PATIENCE: 1}),
        ("--max_steps=2", {"epochs": 1, "early_stopping_patience": 0}),
    ],
)
def test_flags_that_only_the_recipe_completes_are_accepted_alone(text, shown):
    groups = (Experiment, EvaluationConfig)
    given, parsed = flags.parse_given(groups, ["--train_data=train", "--eval_data=valid", text])
    experiment, evaluation = recipes.supposed(given, *parsed)
    check_training(experiment, evaluation)
    values = by_flag(experiment) | by_flag(evaluation)
    assert {name: values[name] for name in shown} == shown


def test_the_help_says_which_defaults_the_recipe_chooses(capsys):
    assert cli.main(["train", "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (batch_size,), (seed,) = (
        [line for line in lines if line.startswith(f"  --{name} ")] for name in ("batch_size", "threads")
    )
    assert batch_size.endswith("default chosen by --recipe=data; 1024 with --recipe=none") and "chosen by" not in seed


def test_another_network_of_a_warm_start_and_a_length_in_steps_are_said(tmp_path, data):
    experiment = replaced(
        Experiment(), {"train_data": str(data), "model_dir": str(tmp_path), "warm_start": "x", "max_steps": 9}
    )
    values, _, line = data_recipe.decide(frozenset(["max_steps", "warm_start"]), experiment, EvaluationConfig())
    assert values.keys().isdisjoint({"hidden_units", "epochs"}) and values["dropout"] == 0.5
    assert "not hidden_units, because of --warm_start" in line and "lr_schedule, because of --max_steps" in line


def test_a_warm_start_has_the_network_of_its_source(tmp_path, data, caplog):
    first, second = tmp_path / "a", tmp_path / "b"
    train = ["train", f"--train_data={data}", "--threads=1", "--max_steps=1"]
    other = ["--recipe=none", "--optimizer=adam", "--model=dcn_v2", "--hidden_units=16"]
    assert cli.main([*train, *other, "--model_params=cross_layers=2", f"--model_dir={first}"]) == 0
    caplog.set_level(logging.INFO)
    assert cli.main([*train, f"--warm_start={first}", f"--model_dir={second}"]) == 0
    left = json.loads((second / "train_summary.json").read_text())["warm_start"]["variables_left"]
    assert {name.rpartition("/")[2] for name in left} == {"Adam", "Adam_1"}  # The moments count their steps.
    said = json.loads((second / "flags.json").read_text())["flags"]
    assert (said["model"], said["hidden_units"], said["dropout"]) == ("dcn_v2", [16], 0.5)
    assert any(message.endswith(f"; the network of {first}") for message in caplog.messages)

    def chosen(**flags):
        source = latest_checkpoint(str(first))
        values = {"train_data": str(data), "model_dir": str(tmp_path / "c"), "warm_start": source}
        experiment = replaced(Experiment(), values | flags)
        values, saved, _ = data_recipe.decide(frozenset(["warm_start", *flags]), experiment, EvaluationConfig())
        assert saved.keys().isdisjoint(("model", "model_params", "hidden_units"))
        return {name: values[name] for name in ("model", "hidden_units") if name in values}, values.get("model_params")

    network = {"model": "dcn_v2", "hidden_units": [16]}
    found, params = chosen(model_params=("cross_rank=2",))
    assert found == network and {"cross_layers=2", "cross_rank=2"} <= {*params} and params[-1] == "cross_rank=2"
    assert chosen(hidden_units=(8,))[0] == {"model": "dcn_v2"}
    assert chosen(train_data="kafka://127.0.0.1:1/clicks")[0] == network
    assert chosen(model="deepfm") == ({}, None)


def test_a_model_keeps_what_its_training_began_with_whatever_the_data_are_now(tmp_path, data, monkeypatch):
    began = _train(data, tmp_path / "model")
    monkeypatch.setattr(data_recipe, "choices", lambda *_: pytest.fail("decided anew"))
    again = _train(data, tmp_path / "model", "--epochs=47", "--dropout=0.1")
    assert again["flags"]["optimizer"] == "adam" and again["flags"]["batch_size"] == 128
    assert (again["flags"]["dropout"], again["flags"]["epochs"]) == (0.1, 47)
    assert again["chosen"] == began["chosen"]

    _train(data, tmp_path / "fixed", "--recipe=none", "--optimizer=adam")
    fixed = _train(data, tmp_path / "fixed", "--epochs=2")
    assert "chosen" not in fixed and fixed["flags"]["batch_size"] == 1024


def test_a_stream_or_another_recipe_in_between_leaves_what_a_training_began_with(tmp_path, data):
    model = tmp_path / "model"
    began = _train(data, model, f"--eval_data={data}", "--epochs=1")
    stream = replaced(Experiment(), {"train_data": "kafka://127.0.0.1:1/clicks", "model_dir": str(model)})
    values, saved, _ = data_recipe.decide(frozenset(), stream, EvaluationConfig())
    assert (values["learning_rate"], saved) == (0.001, began["chosen"])  # The model itself has the optimizer.
    assert values.keys().isdisjoint(("epochs", *recipes.OF_EVALUATIONS))
    fixed = _train(data, model, "--recipe=none", "--epochs=2")
    again = _train(data, model, f"--eval_data={data}", "--epochs=3")
    assert (fixed["flags"]["batch_size"], fixed["chosen"]) == (1024, began["chosen"])
    assert (again["flags"]["optimizer"], again["flags"]["learning_rate"]) == ("adam", 0.001)


def test_a_rate_that_was_given_once_does_not_replace_the_recipe_s(tmp_path, data):
    for directory, first, rate in (("a", [], 0.001), ("b", ["--learning_rate=0.002"], 0.002)):
        _train(data, tmp_path / directory, "--epochs=1", *first)
        lower = _train(data, tmp_path / directory, "--epochs=2", "--learning_rate=5e-4")
        again = _train(data, tmp_path / directory, "--epochs=3")
        assert (lower["flags"]["learning_rate"], again["flags"]["learning_rate"]) == (5e-4, rate)
        assert again["flags"]["optimizer"] == "adam" and again["flags"]["batch_size"] == 128


def test_a_param_of_the_trained_optimizer_can_be_given_without_it(tmp_path, data):
    param = "optimizer_params=weight_decay"
    _train(data, tmp_path / "chosen", "--epochs=1")
    again = _train(data, tmp_path / "chosen", "--epochs=2", f"--{param}=0.01")
    assert [again["flags"][name] for name in ("optimizer", param, "learning_rate")] == ["adam", 0.01, 0.001]
    _train(data, tmp_path / "given", "--recipe=none", "--optimizer=adam")
    again = _train(data, tmp_path / "given", "--recipe=none", "--epochs=2", f"--{param}=0.01")
    assert [again["flags"][name] for name in ("optimizer", param)] == ["adam", 0.01]


def test_a_param_of_adagrad_s_rows_is_not_dropped_with_it():
    name = "embedding_optimizer_params=initial_accumulator"
    values, notes = choices(Facts(rows=60_000, keys=4_000, can_share=True), {name: 1e-2})
    assert values["embedding_optimizer"] == "adagrad" and name not in values
    assert any("dense_adagrad" in note and name in note for note in notes)


def test_a_resumed_training_has_the_evaluations_that_its_early_stopping_needs(tmp_path, data):
    evaluated, model = f"--eval_data={data}", tmp_path / "model"
    began = _train(data, model, evaluated, "--epochs=1", "--lr_schedule_params=patience=2", "--eval_steps=3")
    again = _train(data, model, evaluated, "--epochs=2")
    names = (*recipes.OF_EVALUATIONS, "embedding_lr_schedule")
    assert {name: again["flags"][name] for name in names} == {name: began["flags"][name] for name in names}
    assert (again["flags"]["eval_steps"], again["flags"]["early_stopping_patience"]) == (3, 5)


def test_a_period_that_was_given_once_does_not_replace_the_recipe_s(tmp_path, data):
    evaluated, model = f"--eval_data={data}", tmp_path / "model"
    periods = []
    for more in (["--epochs=1"], ["--epochs=2", "--eval_steps=3"], ["--epochs=3"]):
        flags = _train(data, model, evaluated, "--lr_schedule_params=patience=9", *more)["flags"]
        periods.append((flags["eval_steps"] or 0, flags["eval_epochs"]))
    assert periods == [(0, 7), (3, 0), (0, 7)]


def test_a_stream_and_another_recipe_keep_the_fixed_defaults(tmp_path, data):
    experiment = replaced(Experiment(), {"train_data": "kafka://127.0.0.1:1/clicks"})
    assert data_recipe.decide(frozenset(), experiment, EvaluationConfig()) == ({}, {}, "")
    experiment = replaced(Experiment(), {"train_data": str(data), "recipe": "none"})
    assert data_recipe.decide(frozenset(), experiment, EvaluationConfig()) == ({}, {}, "")
