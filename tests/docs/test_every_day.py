"""The script of docs/every_day.md, over three generated days."""

import fcntl
import json
import os
import pathlib
import subprocess

import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from tests import small
from tests.docs import page
from tests.parallel import launch

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
