"""Jobs of two and three workers, undisturbed, killed and failing."""

import csv
import dataclasses
import functools
import json
import math
import os
import pathlib
import re
import shutil
import signal

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import log_loss, roc_auc_score

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.embedding.snapshot import snapshot
from tests import small
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

NEXT = "--next"  # of workers/job.py
ROWS = 1003  # divides by neither 2 nor 3, and no share by the batch size of 16
STRICT = ("--epochs=3", "--evaluate")
LOOSE = ("--row_copies=worker", "--row_dtype=int8", "--service=shared")
LIMITED = ("auto", "shared")  # What keeps the rows of a table with limits.


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    return directory, small.make(directory, rows=ROWS)


def _flags(data, tmp_path, *more, name="out"):
    return [f"--data={data}", f"--model_dir={tmp_path / 'model'}", f"--out={tmp_path / name}", *more]


def _arguments(*trainings):
    """Returns the arguments of a job that runs trainings with these flags, one after another."""
    _, *arguments = [argument for flags in trainings for argument in (NEXT, *flags)]
    return [launch.WORKERS / "job.py", *arguments]


@pytest.fixture(scope="module")
def trained(source, tmp_path_factory):
    """A directory with the files of jobs with two and three workers, each in its own subdirectory."""
    data, directory = source[1], tmp_path_factory.mktemp("trained")

    def training(path, *more, **name):
        return _flags(data, directory / path, *more, **name)

    loose = [training(how, "--epochs=3", "--evaluate", "--loose", how) for how in LOOSE]
    loose += [training(f"limited-{by}", "--epochs=3", "--loose", "--limits", f"--service={by}") for by in LIMITED]
    ended = [training("ended", "--epochs=0", "--max_steps=10", name=name) for name in ("first", "again")]
    next_day = small.make(directory / "next_day", rows=ROWS, seed=1)
    days = [training("days", "--max_steps=9")]
    for name, *more in (("half", "--max_steps=8"), ("rest",)):
        days.append(_flags(next_day, directory / "days", "--next_data", *more, name=name))
    two = training("resized", "--epochs=1", "--max_steps=13", name="two")
    warm = training("warm", "--epochs=0", "--max_steps=1", "--loose", f"--warm_start={directory / 'strict' / 'model'}")
    of_two = _arguments(training("strict", *STRICT), *loose, *ended, two, warm, *days)
    launch.run(2, *of_two, seconds=2 * launch.TIMEOUT_SECONDS)
    shutil.copytree(directory / "resized" / "model", directory / "resized" / "of_two")
    launch.run(3, *_arguments(training("three", "--epochs=1"), training("resized", "--epochs=1", name="three")))
    return directory


def _seen(out, workers):
    """Returns the list of examples that each rank read."""
    return [json.loads((out / f"seen-{rank}.json").read_text()) for rank in range(workers)]


@pytest.mark.parametrize(("path", "workers", "epochs"), [("strict", 2, 3), ("three", 3, 1)])
def test_uneven_shards_lose_no_example(trained, path, workers, epochs):
    out = trained / path / "out"
    assert sorted(sum(_seen(out, workers), [])) == sorted(f"r{i}" for i in range(ROWS) for _ in range(epochs))
    result = json.loads((out / "result-0.json").read_text())
    assert result["examples"] == epochs * ROWS
    assert result["steps"] == epochs * math.ceil(math.ceil(ROWS / workers) / 16)


def test_metrics_of_two_workers_equal_scikit_learns_over_all_predictions(source, trained):
    out = trained / "strict" / "out"
    with open(source[0] / "rows.csv") as file:
        labels = {row["row"]: float(row["clicked"]) for row in csv.DictReader(file)}
    parts = [np.load(out / f"predictions-{rank}.npz") for rank in (0, 1)]
    predicted = {row: p for part in parts for row, p in zip(part["row"], part["probabilities"], strict=True)}
    assert sorted(predicted) == sorted(labels)
    truth, scores = zip(*((labels[row], predicted[row]) for row in labels), strict=True)
    metrics = [json.loads((out / f"metrics-{rank}.json").read_text()) for rank in (0, 1)]
    assert metrics[0] == metrics[1]
    assert metrics[0]["examples"] == ROWS
    assert metrics[0]["auc"] == pytest.approx(roc_auc_score(truth, scores), abs=1e-4)
    assert metrics[0]["logloss"] == pytest.approx(log_loss(truth, np.float64(scores)), abs=1e-5)
    assert metrics[0]["auc"] > 0.6


@pytest.mark.parametrize("how", LOOSE)
def test_workers_with_background_sync_or_shared_rows_lose_no_example(trained, how):
    out = trained / how / "out"
    assert sorted(sum(_seen(out, 2), [])) == sorted(f"r{i}" for i in range(ROWS) for _ in range(3))
    metrics = [json.loads((out / f"metrics-{rank}.json").read_text()) for rank in (0, 1)]
    assert metrics[0] == metrics[1]
    assert metrics[0]["auc"] > 0.6


@pytest.mark.parametrize("by", LIMITED)
def test_limits_count_for_all_workers_in_every_mode_and_no_example_is_lost(trained, by):
    out = trained / f"limited-{by}" / "out"
    assert sorted(sum(_seen(out, 2), [])) == sorted(f"r{i}" for i in range(ROWS) for _ in range(3))
    saved = latest_checkpoint(trained / f"limited-{by}" / "model")
    keys = np.concatenate([keys for _, keys, _ in snapshot.iterate(saved.path, saved.tables)])
    assert 40 < len(np.unique(keys)) == len(keys) <= 50
    assert len(np.load(trained / "--row_dtype=int8" / "out" / "rows.npz")["keys"]) > 100


def test_two_workers_begin_with_the_rows_and_variables_of_another_model(trained):
    there, rows = (np.load(trained / path / "out" / "rows.npz") for path in ("strict", "warm"))
    assert np.array_equal(rows["keys"], there["keys"])
    same = (rows["rows"] == there["rows"]).all(axis=1)
    assert 0.3 < same.mean() < 1  # All but those of the one step that each worker made.
    starts = [np.load(trained / "warm" / "out" / f"start-{rank}.npz") for rank in (0, 1)]
    source = latest_checkpoint(trained / "strict" / "model")
    dense = tf.train.load_checkpoint(source.dense_prefix)
    for name in set(starts[0].files) - {"global_step"}:
        assert np.array_equal(starts[0][name], starts[1][name])
        assert np.array_equal(starts[0][name], dense.get_tensor(name.replace(".", "/")))
    said = json.loads((trained / "warm" / "out" / "result-0.json").read_text())["warm_start"]
    assert sum(said["rows"].values()) == len(there["keys"]) and said["step"] == source.step


def test_two_workers_with_a_service_read_the_next_days_data_once(trained):
    half, rest = (_seen(trained / "days" / name, 2) for name in ("half", "rest"))
    half = [seen[: 8 * 16] for seen in half]  # one batch more may have been read ahead
    assert sorted(sum(half + rest, [])) == sorted(f"r{i}" for i in range(ROWS))
    saved = latest_checkpoint(trained / "days" / "model")
    assert (saved.data_begin, saved.step, saved.examples) == (9, 9 + 32, 9 * 32 + ROWS)


def test_a_run_resumes_with_another_number_of_workers_without_repeats(trained):
    directory = trained / "resized"
    saved = latest_checkpoint(directory / "of_two")
    rows_saved = sum(len(keys) for _, keys, _ in snapshot.iterate(saved.path, saved.tables))
    two = [seen[: 13 * 16] for seen in _seen(directory / "two", 2)]  # one batch more may have been read ahead
    three = _seen(directory / "three", 3)
    assert sorted(sum(two + three, [])) == sorted(f"r{i}" for i in range(ROWS))
    assert latest_checkpoint(directory / "model").examples == ROWS
    assert np.load(directory / "three" / "rows.npz")["keys"].size >= rows_saved > 0
    results = [json.loads((trained / "ended" / "again" / f"result-{rank}.json").read_text()) for rank in (0, 1)]
    assert results == [None, None]
    assert latest_checkpoint(trained / "ended" / "model").step == 10


KILLED = {"alone": ("--max_steps=60",), "shared": ("--max_steps=60", "--loose", "--service=shared")}


@dataclasses.dataclass(frozen=True)
class Killed:
    """A training of which rank 1 was killed: its directory and output; of its last checkpoint the step, the dense
    variables and the number of rows.
    """

    directory: pathlib.Path
    output: str
    step: int
    dense: dict
    rows: int


def _kill(flags, directory):
    """Runs a training of two workers, of which rank 1 is killed once step 20 is saved. -> the job's output."""
    job = launch.start(2, *_arguments(flags))
    latest = functools.partial(latest_checkpoint, directory / "model")
    launch.wait_until(lambda: latest() and latest().step >= 20, "step 20", 180)
    os.kill(int((directory / "out" / "pid-1").read_text()), signal.SIGKILL)
    output, _ = job.communicate(timeout=120)
    assert job.returncode != 0, output
    return output


@pytest.fixture(scope="module")
def killed(source, tmp_path_factory):
    """A dict of name -> `Killed`."""
    found = {}
    for name, settings in KILLED.items():
        directory = tmp_path_factory.mktemp("killed")
        flags = _flags(source[1], directory, "--epochs=0", *settings, "--step_seconds=0.2")
        output = _kill(flags, directory)
        launch.wait_until(
            lambda directory=directory: not launch.services(directory / "model"), "the killed job's service to end", 30
        )
        saved = latest_checkpoint(directory / "model")
        dense = tf.train.load_checkpoint(saved.dense_prefix)
        found[name] = Killed(
            directory,
            output,
            saved.step,
            {variable.replace("/", "."): dense.get_tensor(variable) for variable in dense.get_variable_to_shape_map()},
            sum(len(keys) for _, keys, _ in snapshot.iterate(saved.path, saved.tables)),
        )
    return found


@pytest.fixture(scope="module")
def after(source, killed, tmp_path_factory):
    """The (directory, standard error) of a job that resumes killed trainings, trains undisturbed, and fails once."""
    data, directory = source[1], tmp_path_factory.mktemp("after")
    again = [
        _flags(data, killed[name].directory, "--epochs=0", *settings, name="again") for name, settings in KILLED.items()
    ]
    undisturbed = _flags(data, directory / "undisturbed", "--epochs=0", *KILLED["alone"])
    failing = _flags(data, directory / "failing", "--epochs=0", "--fail_at_step=5")
    arguments = _arguments(*again, undisturbed, failing)
    done = launch.run(2, *arguments, check=False, seconds=2 * launch.TIMEOUT_SECONDS)
    assert done.returncode != 0
    return directory, done.stderr


def test_a_killed_worker_is_reported_once_and_the_same_command_resumes(killed, after):
    found = killed["alone"]
    rank, line = launch.last_line(found.output)
    assert rank == 0
    assert re.match(r"error: rank 1 on \S+ has ended without an error message: it was killed", line)
    assert line.endswith(f"of step {found.step}: the same command resumes from it")
    assert found.output.count("error: ") == 1
    assert "Traceback" not in found.output
    assert 20 <= found.step < 60
    directory, expected = killed["alone"].directory, killed["alone"].dense
    for rank in (0, 1):
        start = np.load(directory / "again" / f"start-{rank}.npz")
        assert int(start["global_step"]) == killed["alone"].step
        assert set(start) == set(expected)
        for name in expected:
            np.testing.assert_array_equal(start[name], expected[name], name)
    assert latest_checkpoint(directory / "model").step == 60

    paths = (directory / "again", after[0] / "undisturbed" / "out")
    one, two = (np.load(path / "rows.npz") for path in paths)
    np.testing.assert_array_equal(one["keys"], two["keys"])
    np.testing.assert_allclose(one["rows"], two["rows"], atol=1e-5, rtol=0)


def test_workers_that_share_rows_resume_when_one_is_killed(killed, after):
    directory, step = killed["shared"].directory, killed["shared"].step
    assert int(np.load(directory / "again" / "start-1.npz")["global_step"]) == step < 60
    seen = sum(map(len, _seen(directory / "again", 2)))
    assert seen >= (60 - step) * 2 * 16 * 0.9  # the last batch of an epoch may be short
    again = latest_checkpoint(directory / "model")
    assert again.step == 60
    keys = np.concatenate([keys for _, keys, _ in snapshot.iterate(again.path, again.tables)])
    assert len(np.unique(keys)) == len(keys) >= killed["shared"].rows


def test_the_local_service_ends_with_a_job_that_fails(after):
    directory, said = after
    rank, line = launch.last_line(said)
    error = directory / "failing" / "model" / "error-rank1.json"
    assert rank == 1
    assert re.match(
        r"error: RuntimeError: failing on purpose \(\S+job\.py:\d+\); its traceback is in " + str(error), line
    )
    assert line.endswith(": the same command starts from the beginning")
    assert "Traceback" not in said
    assert any(
        'raise RuntimeError("failing on purpose")' in line for line in json.loads(error.read_text())["traceback"]
    )
    launch.wait_until(lambda: not launch.services(directory / "failing" / "model"), "the service to end", 30)
