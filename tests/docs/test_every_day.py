"""The script of docs/every_day.md, over three generated days."""

import fcntl
import json
import os
import pathlib
import subprocess
import sys

import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from tests import small
from tests.docs import page
from tests.parallel import launch

# Stands for `python`, to see what the script starts.
RECORDING = """#!/usr/bin/env bash
[[ $1 == - ]] && exec {python} "$@"
echo "${{@:3}}" >> commands
for each; do
    [[ $each != --output=before/* ]] || echo '{{"auc": 0.7}}' > "${{each#--output=}}"
    [[ $3 != train || $each != --model_dir=* ]] || mkdir -p "${{each#--model_dir=}}/checkpoints"
done
[[ $3 != "${{FAILS:-}}" ]]
"""
ROWS = (1000, 900, 800)
DAYS = ("2026-11-25", "2026-11-26", "2026-11-27")
FLAGS = "--recipe=none\n--batch_size=50\n--threads=1\n--keep_checkpoint_max=0\n"


@pytest.fixture(scope="module")
def clicks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("clicks")
    for seed, (day, rows) in enumerate(zip(DAYS, ROWS, strict=True)):
        small.write_csv(directory / f"{day}.csv", rows, seed)
    return directory


def _day(home, clicks, day, **variables):
    python = str(pathlib.Path(launch.warm_python()).parent)
    environment = launch.environment()
    environment |= {"PATH": f"{python}{os.pathsep}{environment['PATH']}", "MOST_FALL": "0.3", **variables}
    command = [str(page.ROOT / "examples" / "every_day.sh"), str(home), os.path.relpath(clicks), day]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("how", "spec", "model"),
    [("next_data", small.SPEC, "deepfm"), ("warm_start", small.MULTI_SPEC, "shared_bottom")],
)
def test_three_days_are_each_evaluated_before_training_and_published(clicks, tmp_path, how, spec, model):
    (tmp_path / "features.toml").write_text(spec)
    (tmp_path / "train.flags").write_text(f"{FLAGS}--model={model}\n")
    for day in DAYS:
        done = _day(tmp_path, clicks, day, HOW=how)
        assert done.returncode == 0, done.stdout + done.stderr
        said = json.loads(done.stdout.splitlines()[-1])
        model = tmp_path / "models" / ("current" if how == "next_data" else day)
        saved = latest_checkpoint(str(model))
        assert (said["to"], said["global_step"]) == ("publication", saved.step)
    before = [json.loads((tmp_path / "before" / f"{day}.json").read_text()) for day in DAYS[1:]]
    assert [each["examples"] for each in before] == list(ROWS[1:])
    first, second, last = (rows // 50 for rows in ROWS)
    assert json.loads((tmp_path / "before" / f"{DAYS[0]}.json").read_text()) == {}
    begun = first + second if how == "next_data" else 0
    assert [each["global_step"] for each in before] == [first, begun or second]
    assert (saved.data_begin, saved.step) == (begun, begun + last)

    # A day of one class has no AUC, so the next one is compared with the day before it.
    (tmp_path / "before" / f"{DAYS[2]}.json").write_text(json.dumps(dict.fromkeys(before[-1])))
    broken = tmp_path / "broken.csv"
    small.write_csv(broken, 300, seed=3)
    done = _day(tmp_path, tmp_path, "broken", HOW=how, MOST_FALL="-1")
    assert done.returncode == 1 and "broken: auc" in done.stderr
    assert f"on {DAYS[1]}" in done.stderr and "not trained" in done.stderr
    # The next day is compared with the last one that was trained, and a repaired file is read again.
    assert not (tmp_path / "data" / "broken").exists() and not (tmp_path / "before" / "broken.json").exists()
    with open(tmp_path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert _day(tmp_path, clicks, DAYS[2], HOW=how).returncode == 75


def test_a_day_continues_the_day_before_it_and_is_not_evaluated_again(clicks, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").write_text(RECORDING.format(python=sys.executable))
    (tmp_path / "bin" / "python").chmod(0o755)
    (tmp_path / "models" / "2026-11-24").mkdir(parents=True)  # A training that ended before its first checkpoint.

    def started(day, **variables):
        (tmp_path / "commands").write_text("")
        variables["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        done = _day(tmp_path, clicks, day, **variables)
        assert done.returncode == ("FAILS" in variables), done.stderr
        said = (tmp_path / "commands").read_text().splitlines()
        return {line.split()[0]: line.split() for line in said}

    # On the first day there is nothing to evaluate, also if it is repeated after its training.
    assert "publish" in started(DAYS[0], FAILS="publish")
    assert "evaluate" not in started(DAYS[0])
    assert "evaluate" in started(DAYS[1])
    # The model of all days is none of a day before, and a later day is not either.
    assert not any(word.startswith("--warm_start") for word in started(DAYS[1], HOW="warm_start")["train"])
    assert f"--warm_start=models/{DAYS[1]}" in started(DAYS[2], HOW="warm_start")["train"]
    assert not any(word.startswith("--warm_start") for word in started(DAYS[0], HOW="warm_start")["train"])
    assert f"--warm_start=models/{DAYS[0]}" in started(DAYS[1], HOW="warm_start")["train"]
