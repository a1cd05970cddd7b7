"""`--recipe`: what one word sets, and what overrides it."""

import logging

import pytest

from ctr_trainer import cli
from ctr_trainer.experiment import flags, recipes
from ctr_trainer.settings.by_flag import by_flag
from tests import small


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("recipes"), rows=300)


def _parsed(*arguments):
    """Returns the values by flag of `train`, as the command line gives them to it."""
    import ctr_trainer.commands.train as command

    values, (_, experiment, evaluation, *_) = cli._parse("train", command, list(arguments))
    return {**values, **by_flag(experiment), **by_flag(evaluation)}


def test_every_flag_of_a_recipe_exists_and_is_set_to_its_value():
    known = flags.define(flags.TRAINING)
    values = _parsed("--recipe=bars")
    assert set(recipes.REPLACED_BY.values()) <= set(known)
    for name, text in recipes.RECIPES["bars"].items():
        assert type(values[name])(text) == values[name], name
    assert _parsed()["embedding_optimizer"] == "adagrad"


@pytest.mark.parametrize("given", [["--recipe=bars", "--clip_norm=3"], ["--clip_norm=3", "--recipe=bars"]])
def test_a_given_flag_overrides_a_recipe_wherever_it_stands(given, tmp_path):
    assert _parsed(*given)["clip_norm"] == 3
    flagfile = tmp_path / "own.flags"
    flagfile.write_text("\n".join(given))
    values = _parsed(f"--flagfile={flagfile}")
    assert (values["clip_norm"], values["batch_norm_momentum"]) == (3, 0.9)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("--lr_schedule=constant", {"lr_schedule": "constant", "decay_rate": 0.0, "plateau_patience": 0}),
        ("--eval_steps=7", {"eval_steps": 7, "eval_epochs": 0}),
        ("--max_steps=7", {"max_steps": 7, "epochs": 1}),
        ("--plateau_patience=2", {"lr_schedule": "plateau", "decay_rate": 0.1, "plateau_patience": 2}),
    ],
)
def test_what_depends_on_an_overridden_flag_is_not_set_either(given, expected):
    values = _parsed("--recipe=bars", given)
    assert {name: values[name] for name in expected} == expected


def test_an_unknown_recipe_is_refused_with_those_that_there_are(capsys):
    assert cli.main(["train", "--recipe=bar"]) == 2
    assert "--recipe=bar: choose one of data, none, bars" in capsys.readouterr().err


def test_a_training_by_the_recipe_says_what_it_set_and_ends_by_the_plateau(tmp_path, data, caplog):
    caplog.set_level(logging.INFO)
    arguments = [f"--train_data={data}", f"--eval_data={data}", f"--model_dir={tmp_path}", "--threads=1"]
    own = ["--recipe=bars", "--batch_norm", "--hidden_units=8", "--batch_size=64", "--epochs=3", "--learning_rate=0.01"]
    assert cli.main(["train", *arguments, *own]) == 0
    (line,) = [message for message in caplog.messages if message.startswith("recipe bars")]
    assert "sets optimizer=adam, embedding_optimizer=dense_adam, embedding_learning_rate=0.001" in line
    assert line.endswith("in place of its values there are learning_rate=0.01, epochs=3")
    assert cli.main(["evaluate", f"--eval_data={data}", f"--model_dir={tmp_path}", "--checkpoint=best"]) == 0
