"""The space of a search, the settings of its trials, and the importance of each setting."""

import dataclasses

import pytest

from ctr_trainer.commands.experiment import flags
from ctr_trainer.commands.experiment.recipes import Facts
from ctr_trainer.commands.studies import space
from ctr_trainer.commands.studies.plan import GROUPS, TrialPlan, TrialPlans, found_flags
from ctr_trainer.settings.by_flag import replaced
from ctr_trainer.system.messages.errors import UserError

NOTHING = space.Space(())


def test_a_study_is_of_its_data():
    plans = _plans(["--model=lr"])
    other = dataclasses.replace(plans, data=("other data",))
    assert plans.fingerprint() == _plans(["--model=lr"]).fingerprint() != other.fingerprint()


def _plans(given, spaces=NOTHING, **facts):
    """Returns the plans of a search with flags that are given."""
    values = flags.define(GROUPS)
    values(["search", *given])
    parsed = flags.parsed(GROUPS, values)
    names = {name for name in {*values, *parsed} if "=" in name or values[name].present}
    own = TrialPlan.of(names, *(replaced(group(), parsed) for group in GROUPS))
    return TrialPlans(own, spaces, Facts(8192, has_validation=True, **facts))


def _loaded(tmp_path, text):
    (tmp_path / "space.toml").write_text(text)
    return space.load(str(tmp_path / "space.toml"))


def test_each_flag_of_the_default_space_is_taken_at_both_ends_of_its_range():
    default = space.load("")
    for end in ("low", "high"):
        texts = {
            p.flag: p.choices[0 if end == "low" else -1] if p.choices else str(getattr(p, end))
            for p in default.parameters
        }
        plan = _plans([], default).of(texts)
        assert plan.experiment.train.schedule.name == "plateau"
        assert plan.experiment.data.batch_size == {"low": 256, "high": 4096}[end]


def test_given_flags_replace_whole_groups_and_their_values_are_in_the_range():
    default = space.load("")
    assert set(default.fixed({"early_stopping_patience", "optimizer"})) == {"epochs", "embedding_optimizer"}
    rate = next(each for each in default.parameters if each.flag == "learning_rate")
    assert not rate.holds("0.5") and rate.widened("0.5").holds("0.5")
    units = next(each for each in default.parameters if each.flag == "hidden_units")
    assert units.widened("7").choices[0] == "7"
    dropout = next(each for each in default.parameters if each.flag == "dropout")
    assert dropout.holds("0.3") and not dropout.holds("0.33")


def test_another_optimizer_or_schedule_has_no_settings_of_the_former_one():
    plans = _plans(
        [
            "--embedding_optimizer_params=initial_accumulator=0.1",
            "--lr_schedule=cosine",
            "--lr_schedule_params=decay_steps=7",
        ],
        space.Space((), ({"embedding_optimizer": "adam"},)),
    )
    texts = plans.of({"lr_schedule": "constant"}).texts
    assert texts["embedding_optimizer"] == "adam" and texts["lr_schedule"] == "constant"
    assert not any("initial_accumulator" in name or "decay_steps" in name for name in texts)
    assert plans.of(None).texts["embedding_optimizer_params=initial_accumulator"] == "0.1"


def test_a_param_of_the_model_replaces_the_given_one_of_its_name_alone():
    plans = _plans(["--model=dcn_v2", "--model_params=cross_layers=2,cross_rank=8"])
    given = plans.of({"model_params=cross_layers": "4"}).experiment.model.model_params
    assert dict(each.split("=") for each in given) == {"cross_rank": "8", "cross_layers": "4"}


@pytest.mark.parametrize(
    ("given", "batch_size", "steps"),
    [
        ([], "1024", 4),
        ([], "256", 16),
        (["--eval_steps=100", "--batch_size=512"], "2048", 25),
        (["--eval_steps=1"], "4096", 1),
    ],
)
def test_evaluations_are_equally_many_examples_apart(given, batch_size, steps):
    plan = _plans(given).of({"batch_size": batch_size})
    assert plan.evaluation.every_n_steps == steps


def test_a_study_is_of_settings_a_space_and_data_but_not_of_places_and_threads():
    name = _plans(["--learning_rate=0.1"]).fingerprint()
    assert _plans(["--learning_rate=0.1", "--model_dir=other", "--threads=1"]).fingerprint() == name
    plans = _plans(["--learning_rate=0.1"])
    others = [_plans(["--learning_rate=0.2"]), dataclasses.replace(plans, space=space.load(""))]
    others += [dataclasses.replace(plans, facts=Facts(1))]
    assert name not in [other.fingerprint() for other in others]


def test_the_flagfile_has_all_that_was_given_and_no_other_directory():
    plans = _plans(["--batch_size=1024", "--nobatch_norm", "--model_dir=own", "--dropout=0.25"])
    lines = found_flags(plans.of({"learning_rate": "0.125"}))
    assert {"--batch_size=1024", "--batch_norm=false", "--dropout=0.25", "--learning_rate=0.125"} <= set(lines)
    assert not [line for line in lines if line.startswith("--model_dir")]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no flag is varied"),
        ("learning_rate = 3", "3 is not a table"),
        ("[dropout]\nlow = 0.1", "'high' is None: give low and high as numbers, or choices"),
        ("[dropout]\nlow = 0.3\nhigh = 0.1", "low must be below high"),
        ("[dropout]\nlow = 0.0\nhigh = 0.1\nlog = true", "low must be above 0, below high"),
        ("[dropout]\nlow = 0.0\nhigh = 0.1\nstart = 2", "start=2 is not one of the values"),
        ("[dropout]\nlow = 0.0\nhi = 0.1", "unknown key 'hi'"),
        ('[model]\nchoices = ["lr"]', "choices are lr: give at least two different ones"),
        ("[model]\nchoices = [[1], [2]]", "[1] is neither a text nor a number"),
        ('[model]\nchoices = ["lr", "fm"]\nlog = true', "choices exclude log"),
        ("[dropout", "not TOML"),
    ],
)
def test_a_wrong_space_is_refused_with_its_place(tmp_path, text, problem):
    with pytest.raises(UserError) as error:
        _loaded(tmp_path, text)
    assert problem in str(error.value) and "space.toml" in str(error.value)


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        ({"no_such_flag": "1"}, "no_such_flag"),
        ({"dropout": "2"}, "--dropout=2 must be"),
        ({"model_dir": "x"}, "model_dir: this flag cannot differ between trials"),
    ],
)
def test_settings_that_cannot_be_are_refused(texts, problem):
    with pytest.raises(UserError, match=problem):
        _plans([]).of(texts)


def test_the_first_trial_leaves_to_train_what_the_recipe_by_the_data_chooses():
    first = found_flags(_plans([]).of(None))
    assert not [line for line in first if line.startswith(("--best_metric", "--eval_", "--recipe", "--batch_size"))]
    other = found_flags(_plans([]).of({"dropout": "0.25"}))
    assert {"--recipe=none", "--best_metric=logloss", "--eval_steps=4", "--dropout=0.25"} <= set(other)
    evaluated = found_flags(_plans(["--best_metric=auc"]).of(None))  # It replaces the recipe's choice.
    assert {"--best_metric=auc", "--eval_epochs=1"} <= set(evaluated)
    by_step = found_flags(_plans(["--eval_steps=3", "--recipe=none"]).of(None))
    assert {"--best_metric=logloss", "--eval_steps=3", "--recipe=none"} <= set(by_step)


def test_all_trials_have_the_model_that_the_recipe_chooses_for_numbers():
    numbers = {"keys": 0, "has_pieces": True}
    assert "--model=tabm" not in found_flags(_plans([], **numbers).of(None))  # The recipe itself chooses.
    found = found_flags(_plans([], **numbers).of({"dropout": "0.25"}))
    assert {"--model=tabm", "--model_params=members=8", "--recipe=none"} <= set(found)
    given = found_flags(_plans(["--model=dcn_v2"], **numbers).of({"dropout": "0.25"}))
    assert "--model=dcn_v2" in given and not [line for line in given if line.startswith("--model_params")]
