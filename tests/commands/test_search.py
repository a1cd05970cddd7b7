"""`search`: its trials, what ends them, what continues them, and what it leaves."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from ctr_trainer import cli
from ctr_trainer.commands import search
from ctr_trainer.commands.studies.training import TrialTraining
from ctr_trainer.system.messages.errors import UserError
from tests import small

pytest.importorskip("optuna", reason="search needs optuna: pip install 'ctr_trainer[search]'")
pytestmark = pytest.mark.integration
SPACE = """
[[unless_given]]
epochs = 2

[learning_rate]
choices = ["0.02", "0.04"]
start = "0.04"

[dropout]
low = 0.0
high = 0.5
"""


def _arguments(tmp_path, data, *others):
    """Returns the arguments of a search whose first trial has 5 steps, each of them evaluated."""
    (tmp_path / "space.toml").write_text(SPACE)
    flagfile = tmp_path / "own.flags"
    lines = [f"--train_data={data}", f"--eval_data={data}", f"--model_dir={tmp_path / 'never'}"]
    lines += ["--threads=1", "--eval_steps=1", "--recipe=none"]
    lines += [
        "--batch_size=64",
        "--hidden_units=8",
        "--learning_rate=0.02",
        "--embedding_optimizer_params=initial_accumulator=1e-3",
    ]
    flagfile.write_text("\n".join(lines))
    places = [f"--space={tmp_path / 'space.toml'}", f"--output={tmp_path / 'out'}"]
    return ["search", f"--flagfile={flagfile}", *places, *others]


def _trials(tmp_path):
    """Returns the rows of the table by the number of the trial."""
    with open(tmp_path / "out" / "trials.csv") as file:
        return {int(row["trial"]): row for row in csv.DictReader(file)}


def _flags(path):
    return [line for line in path.read_text().splitlines() if not line.startswith("#")]


def test_the_first_trial_is_as_given_and_a_second_start_continues(tmp_path, data, capsys, warm_python):
    arguments = _arguments(tmp_path, data, "--minutes=0")
    assert cli.main([*arguments, "--budget_rows=320"]) == 0
    (first,) = _trials(tmp_path).values()
    assert (first["state"], first["rows"], first["learning_rate"], first["evaluations"]) == ("complete", "320", "", "5")
    given = {
        "--learning_rate=0.02",
        "--hidden_units=8",
        "--batch_size=64",
        "--embedding_optimizer_params=initial_accumulator=0.001",
    }
    (own,) = (tmp_path / "out" / "trials").iterdir()
    flags = _flags(own / "0.flags")
    assert given <= set(flags) and not [flag for flag in flags if flag.startswith(("--epochs", "--dropout"))]
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["value"] == found["own_value"] == pytest.approx(float(first["logloss"]), abs=1e-5)
    assert (found["trials"], found["best_trial"], found["failed"], found["rows"]) == (1, 0, 0, 320)

    both = "--budget_rows=960"  # Two whole trials: how far a stopped trial gets depends on the speed.
    assert cli.main([*arguments, both]) == 0
    trials = _trials(tmp_path)
    assert sorted(trials) == [0, 1] and trials[0] == first
    assert (trials[1]["state"], trials[1]["rows"], trials[1]["learning_rate"]) == ("complete", "640", "0.04")
    assert "--epochs=2" in _flags(own / "1.flags")
    capsys.readouterr()
    assert cli.main([*arguments, both]) == 0  # The budget is spent.
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["trials"] == 2

    best = min(trials.values(), key=lambda trial: float(trial["logloss"]))
    flagfile = f"--flagfile={tmp_path / 'out' / 'best.flags'}"  # It has no --model_dir, which would win here.
    assert cli.main(["train", f"--model_dir={tmp_path / 'again'}", flagfile]) == 0
    trained = json.loads((tmp_path / "again" / "evaluations.json").read_text())["best"]
    assert trained["value"] == pytest.approx(float(best["logloss"]), abs=1e-5)
    assert not (tmp_path / "never").exists()


def test_trials_of_one_of_several_labels_are_compared_by_their_loss(tmp_path, capsys, warm_python):
    data = small.make(tmp_path, rows=320, labels=2)
    assert cli.main(_arguments(tmp_path, data, "--label=clicked", "--minutes=0", "--budget_rows=320")) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["metric"], found["trials"], found["failed"]) == ("loss", 1, 0) and found["value"] > 0


def test_a_training_that_fails_says_why_and_where_its_log_is(tmp_path, data, warm_python):
    flags = [f"--train_data={data}", f"--eval_data={data}", f"--model_dir={tmp_path / '0'}", "--threads=1"]
    flags += ["--eval_steps=1", "--batch_size=64", "--hidden_units=8", "--recipe=none", "--learning_rate=1e30"]
    with pytest.raises(UserError, match=rf"loss .*\(status 1; {tmp_path / '0.log'}\)"):
        TrialTraining(tmp_path, 0).run(flags, "auc", lambda run: False)


def test_ctrl_c_leaves_the_best_flagfile_and_repeats_the_trial_later(tmp_path, data, warm_python):
    arguments = _arguments(tmp_path, data, "--minutes=10")
    command = [sys.executable, "-m", "ctr_trainer", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    while not (found := [*(tmp_path / "out").glob("trials/*/1")]):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted: the best logloss so far is" in errors.splitlines()[-1]
    assert (tmp_path / "out" / "best.flags").exists() and not found[0].exists()
    interrupted = _trials(tmp_path)[1]
    assert interrupted["state"] == "failed" and interrupted["failure"].startswith("interrupted")
    assert cli.main([*arguments[:-1], "--minutes=0", "--budget_rows=400"]) == 0
    again = _trials(tmp_path)[2]
    assert (again["learning_rate"], again["dropout"]) == (interrupted["learning_rate"], interrupted["dropout"])


def test_the_default_space_keeps_the_length_of_pretrained_vectors(tmp_path, data, monkeypatch):
    found = []
    monkeypatch.setattr(search, "_search", lambda plans, _: found.append(plans.space.parameters))
    for path in (data, small.make_pretrained(tmp_path, rows=20)):
        assert cli.main(["search", f"--train_data={path}", f"--eval_data={path}"]) == 0
    flags = [{each.flag for each in parameters} for parameters in found]
    assert flags[0] - flags[1] == {"embedding_dim"} and len(flags[1]) > 3


def test_without_optuna_the_message_says_how_to_install_it(tmp_path, data, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in ("results", "study"):
        monkeypatch.delitem(sys.modules, f"ctr_trainer.commands.studies.{name}", raising=False)
    assert cli.main(_arguments(tmp_path, data)) == 1
    assert "search needs the package optuna: pip install 'ctr_trainer[search]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("others", "text"),
    [
        (["--eval_data="], "--eval_data is missing"),
        (["--minutes=0"], "--minutes=0 sets no time limit, so the search would never end: give --budget_rows"),
        (["--train_data=nowhere"], "data set nowhere: no such directory"),
        (["--storage=no_such://host/name"], "storage=no_such://host/name: cannot be opened"),
        (["--output=s3://bucket/out"], "s3://bucket/out: search writes to a directory of a disk; name its path"),
        (["--output=/dev/null/out"], "/dev/null/out: cannot be written: Not a directory"),
        (["--best_metric=prob_mean"], "best_metric=prob_mean: search supports auc,"),
    ],
)
def test_what_no_trial_could_train_is_refused_at_once(tmp_path, data, capsys, others, text):
    assert cli.main(_arguments(tmp_path, data, *others)) == 1
    assert text in capsys.readouterr().err
