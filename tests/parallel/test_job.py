"""Jobs of one, two and three workers, undisturbed, killed and failing."""

import csv
import json
import math
import os
import re
import signal
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import log_loss, roc_auc_score

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.estimator.checkpoint import latest_checkpoint
from tests import small
from tests.parallel import launch

pytestmark = pytest.mark.integration

ROWS = 1003  # divides by neither 2 nor 3, and no share by the batch size of 16


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    directory = tmp_path_factory.mktemp("job")
    return directory, small.make(directory, rows=ROWS)


def _arguments(data, tmp_path, *more, name="out"):
    flags = [f"--data={data}", f"--model_dir={tmp_path / 'model'}", f"--out={tmp_path / name}"]
    return [launch.WORKERS / "job.py", *flags, *more]


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_uneven_shards_lose_no_example(source, tmp_path, workers):
    launch.run(workers, *_arguments(source[1], tmp_path, "--epochs=1"))
    seen = sum((json.loads((tmp_path / "out" / f"seen-{rank}.json").read_text()) for rank in range(workers)), [])
    assert sorted(seen) == sorted(f"r{i}" for i in range(ROWS))
    result = json.loads((tmp_path / "out" / "result-0.json").read_text())
    assert result["examples"] == ROWS
    assert result["steps"] == math.ceil(math.ceil(ROWS / workers) / 16)


def test_metrics_of_two_workers_equal_scikit_learns_over_all_predictions(source, tmp_path):
    directory, data = source
    launch.run(2, *_arguments(data, tmp_path, "--epochs=3", "--evaluate"))
    with open(directory / "rows.csv") as file:
        labels = {row["row"]: float(row["clicked"]) for row in csv.DictReader(file)}
    parts = [np.load(tmp_path / "out" / f"predictions-{rank}.npz") for rank in (0, 1)]
    predicted = {row: p for part in parts for row, p in zip(part["row"], part["probabilities"], strict=True)}
    assert sorted(predicted) == sorted(labels)
    truth, scores = zip(*((labels[row], predicted[row]) for row in labels), strict=True)
    metrics = [json.loads((tmp_path / "out" / f"metrics-{rank}.json").read_text()) for rank in (0, 1)]
    assert metrics[0] == metrics[1]
    assert metrics[0]["examples"] == ROWS
    assert metrics[0]["auc"] == pytest.approx(roc_auc_score(truth, scores), abs=1e-4)
    assert metrics[0]["logloss"] == pytest.approx(log_loss(truth, np.float64(scores)), abs=1e-5)
    assert metrics[0]["auc"] > 0.6


@pytest.mark.parametrize(
    "how", ["--row_copies=host", "--row_copies=worker", "--sync_compression=fp16", "--service=shared"]
)
def test_workers_that_sync_beside_their_training_or_share_rows_learn_as_well_and_lose_no_example(source, tmp_path, how):
    launch.run(2, *_arguments(source[1], tmp_path, "--epochs=3", "--evaluate", "--loose", how))
    seen = sum((json.loads((tmp_path / "out" / f"seen-{rank}.json").read_text()) for rank in (0, 1)), [])
    assert sorted(seen) == sorted(f"r{i}" for i in range(ROWS) for _ in range(3))
    metrics = [json.loads((tmp_path / "out" / f"metrics-{rank}.json").read_text()) for rank in (0, 1)]
    assert metrics[0] == metrics[1]
    assert metrics[0]["auc"] > 0.6


def test_a_worker_killed_in_mid_run_resumes_at_the_last_checkpoint(source, tmp_path):
    data, model_dir = source[1], tmp_path / "model"
    arguments = _arguments(data, tmp_path, "--epochs=0", "--max_steps=80", "--step_seconds=0.1")
    job = subprocess.Popen(
        launch.command(2, *arguments),
        env=launch.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    launch.wait_until(lambda: latest_checkpoint(model_dir) and latest_checkpoint(model_dir).step >= 20, "step 20", 180)
    os.kill(int((tmp_path / "out" / "pid-1").read_text()), signal.SIGKILL)
    output, _ = job.communicate(timeout=120)
    assert job.returncode != 0, output
    launch.wait_until(lambda: not launch.services(model_dir), "the service of the killed job to end", 30)

    saved = latest_checkpoint(model_dir)
    rank, line = launch.last_line(output)
    assert rank == 0
    assert re.match(r"error: rank 1 on \S+ has ended without a word: it was killed", line)
    assert line.endswith(f"of step {saved.step}: the same command goes on from it")
    assert output.count("error: ") == 1
    assert "Traceback" not in output
    assert 20 <= saved.step < 80
    reader = tf.train.load_checkpoint(saved.dense_prefix)
    expected = {name.replace("/", "."): reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}

    launch.run(2, *_arguments(data, tmp_path, "--epochs=0", "--max_steps=80", name="again"))
    for rank in (0, 1):
        start = np.load(tmp_path / "again" / f"start-{rank}.npz")
        assert int(start["global_step"]) == saved.step
        assert set(start) == set(expected)
        for name in expected:
            np.testing.assert_array_equal(start[name], expected[name], name)
    assert latest_checkpoint(model_dir).step == 80

    undisturbed = _arguments(data, tmp_path / "undisturbed", "--epochs=0", "--max_steps=80")
    launch.run(2, *undisturbed)
    one, two = (np.load(path / "rows.npz") for path in (tmp_path / "again", tmp_path / "undisturbed" / "out"))
    np.testing.assert_array_equal(one["keys"], two["keys"])
    np.testing.assert_allclose(one["rows"], two["rows"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("how", ["--row_copies=host", "--service=shared"])
def test_workers_that_share_rows_resume_at_the_last_checkpoint_when_one_is_killed(source, tmp_path, how):
    data, model_dir = source[1], tmp_path / "model"
    shared = ["--loose", how, "--epochs=0", "--max_steps=60"]
    arguments = _arguments(data, tmp_path, *shared, "--step_seconds=0.1")
    job = subprocess.Popen(
        launch.command(2, *arguments), env=launch.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    launch.wait_until(lambda: latest_checkpoint(model_dir) and latest_checkpoint(model_dir).step >= 20, "step 20", 180)
    os.kill(int((tmp_path / "out" / "pid-1").read_text()), signal.SIGKILL)
    output, _ = job.communicate(timeout=120)
    assert job.returncode != 0, output
    saved = latest_checkpoint(model_dir)
    launch.run(2, *_arguments(data, tmp_path, *shared, name="again"))
    assert int(np.load(tmp_path / "again" / "start-1.npz")["global_step"]) == saved.step < 60
    seen = sum(len(json.loads((tmp_path / "again" / f"seen-{rank}.json").read_text())) for rank in (0, 1))
    assert seen >= (60 - saved.step) * 2 * 16 * 0.9  # the last batch of an epoch may be short
    again = latest_checkpoint(model_dir)
    assert again.step == 60
    keys = np.concatenate([keys for _, keys, _ in snapshot.iterate(again.path, again.tables)])
    assert (
        len(np.unique(keys)) == len(keys) >= sum(len(keys) for _, keys, _ in snapshot.iterate(saved.path, saved.tables))
    )


def test_a_run_goes_on_with_another_number_of_workers_and_repeats_no_example(source, tmp_path):
    data, model_dir = source[1], tmp_path / "model"
    launch.run(2, *_arguments(data, tmp_path, "--epochs=1", "--max_steps=13", name="first"))
    saved = latest_checkpoint(model_dir)
    rows_saved = sum(len(keys) for _, keys, _ in snapshot.iterate(saved.path, saved.tables))
    launch.run(3, *_arguments(data, tmp_path, "--epochs=1", name="second"))
    paths = [tmp_path / "first" / f"seen-{r}.json" for r in (0, 1)]
    first = [json.loads(path.read_text())[: 13 * 16] for path in paths]  # one batch more may have been read ahead
    second = [json.loads((tmp_path / "second" / f"seen-{r}.json").read_text()) for r in (0, 1, 2)]
    assert sorted(sum(first + second, [])) == sorted(f"r{i}" for i in range(ROWS))
    assert latest_checkpoint(model_dir).examples == ROWS
    assert np.load(tmp_path / "second" / "rows.npz")["keys"].size >= rows_saved > 0


def test_a_checkpoint_at_max_steps_ends_all_ranks(source, tmp_path):
    arguments = _arguments(source[1], tmp_path, "--epochs=0", "--max_steps=10")
    launch.run(2, *arguments)
    launch.run(2, *arguments)
    assert json.loads((tmp_path / "out" / "result-1.json").read_text()) is None
    assert latest_checkpoint(tmp_path / "model").step == 10


def test_the_local_service_ends_with_a_job_that_fails(source, tmp_path):
    done = launch.run(2, *_arguments(source[1], tmp_path, "--epochs=0", "--fail_at_step=5"), check=False)
    assert done.returncode != 0
    rank, line = launch.last_line(done.stderr)
    error = tmp_path / "model" / "error-rank1.txt"
    assert rank == 1
    assert re.match(
        r"error: RuntimeError: failing on purpose \(\S+job\.py:\d+\); its traceback is in " + str(error), line
    )
    assert line.endswith(": the same command starts from the beginning")
    assert "Traceback" not in done.stderr
    assert 'raise RuntimeError("failing on purpose")' in error.read_text()
    launch.wait_until(lambda: not launch.services(tmp_path / "model"), "the service to end", 30)
