"""A job whose data and model are in an object store: trained by two workers, killed, gone on with under `launch`,
evaluated, asked and exported. The store is moto's server."""

import json
import os
import signal
import subprocess
import threading

import pytest

from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.system.files.paths import path_of
from tests import object_store, small
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1800)]
ROWS, BATCH = 1000, 32
_SECONDS = 900  # The store, which has one thread, runs beside the job.
MODEL = f"s3://{object_store.BUCKET}/model"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The directory of temporary files, empty."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    return directory


def _command(workers, name, *flags):
    data = f"s3://{object_store.BUCKET}/data"
    given = [f"--train_data={data}", f"--eval_data={data}", f"--model_dir={MODEL}", f"--batch_size={BATCH}"]
    given = [*given, "--hidden_units=8", "--epochs=2", "--recipe=none"] if name == "train" else given[1:]
    return [workers, "-m", "ctr_trainer", name, *given, *flags]


def _wait_until(condition, what):
    """Looks twice a second, because each look is a request to a store that has one thread."""
    launch.wait_until(condition, what, _SECONDS, every=0.05)


def _has_saved(store):
    return any(key.endswith("manifest.json") for key in store.keys("model"))


def test_a_job_in_a_store(store, temporary, tmp_path):
    for file in small.make(tmp_path / "made", ROWS).iterdir():
        store.put(f"data/{file.name}", file)
    saves = ["--save_checkpoints_steps=2", "--keep_checkpoint_max=2"]
    train = _command(2, "train", *saves, "--log_steps=4", "--eval_epochs=1", "--best_metric=auc")

    job = subprocess.Popen(
        launch.warmed(launch.command(*train)), env=launch.environment(), stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        _wait_until(lambda: _has_saved(store) or job.poll() is not None, "a checkpoint")
    finally:
        os.killpg(job.pid, signal.SIGKILL)
        print(job.communicate(timeout=60)[0].decode())
    killed = checkpoints.latest_checkpoint(MODEL)
    assert 0 < killed.step < 32

    # The launcher reads the checkpoints of the store, too.
    launched = [0, "-m", "ctr_trainer", "launch", "-np", 2, "--", *train[4:]]
    done = launch.run(*launched, seconds=_SECONDS)
    assert f"resuming from {killed.path}: step {killed.step}" in done.stderr
    found = checkpoints.list_checkpoints(MODEL)
    assert found[-1].step == 32 and found[-1].examples == 2 * ROWS  # ceil(500 / 32) steps of each epoch.
    for each in found:
        each.verify()
    summary = path_of(f"{MODEL}/train_summary.json").read_json("")
    assert (summary["workers"], summary["global_step"]) == (2, 32)
    keys = [key.removeprefix("model/") for key in store.keys("model")]
    assert {"metrics.jsonl", "evaluations.json", "features.json", "flags.json", "service.log"} <= set(keys)
    assert [key for key in keys if key.startswith("events.")] and [
        key for key in keys if key.startswith("eval/events.")
    ]
    assert not [key for key in keys if key.endswith((".lock", ".tmp")) and not key.startswith(".shard")]
    steps = [json.loads(line)["step"] for line in path_of(f"{MODEL}/metrics.jsonl").read_bytes().splitlines()]
    assert steps[0] == 0 and killed.step in steps and steps[-1] >= 28

    evaluated = json.loads(
        launch.run(*_command(2, "evaluate"), seconds=_SECONDS).stdout.splitlines()[-1].partition("<stdout>:")[2]
    )
    assert evaluated["examples"] == ROWS and evaluated["global_step"] == 32 and 0.5 < evaluated["auc"] < 1
    url = f"s3://{object_store.BUCKET}/out"
    launch.run(*_command(0, "predict", f"--output={url}/p.parquet", "--checkpoint=best"), seconds=_SECONDS)
    with path_of(f"{url}/p.parquet").open_parquet() as file:
        assert file.metadata.num_rows == ROWS
    launch.run(*_command(0, "export", f"--export_dir={url}/1"), seconds=_SECONDS)
    assert {"out/1/saved_model.pb", "out/1/assets.extra/feature_spec.json"} <= set(store.keys("out"))
    left = [name for name in os.listdir(temporary) if not name.startswith("pytest")]
    assert left == []


def test_a_store_that_stands_still_for_long_costs_restarts_and_no_job(store, temporary, tmp_path):
    for file in small.make(tmp_path / "made", ROWS).iterdir():
        store.put(f"data/{file.name}", file)
    model = f"s3://{object_store.BUCKET}/outage"
    given = [f"--train_data=s3://{object_store.BUCKET}/data", f"--model_dir={model}", f"--batch_size={BATCH}"]
    command = [launch.warm_python(), "-m", "ctr_trainer", "launch", "--", *given, "--hidden_units=8", "--recipe=none"]
    job = subprocess.Popen(
        [*command, "--epochs=3", "--save_checkpoints_steps=8"],
        env={**launch.environment(), "AWS_MAX_ATTEMPTS": "2"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = []
    reader = threading.Thread(target=lambda: lines.extend(job.stdout))
    reader.start()
    try:
        _wait_until(lambda: job.poll() is not None or checkpoints.latest_checkpoint(model), "a checkpoint")
        with store.standing_still():
            _wait_until(lambda: any("restart 2: " in line for line in lines) or job.poll() is not None, "restarts")
        assert job.wait(_SECONDS) == 0, "".join(lines)
    finally:
        job.kill()
        reader.join(60)
    text = "".join(lines)
    assert "Not restarted" not in text
    assert "waiting 5 s before the next one" in text
    restarts = path_of(f"{model}/train_summary.json").read_json("")["restarts"]
    assert len(restarts) >= 2 and "NETWORK_CONNECTION" in restarts[0]["reason"]
    assert {each["step"] for each in restarts} == {None}  # The launcher could not look, and says no wrong step.
    assert checkpoints.latest_checkpoint(model).step == 3 * -(-ROWS // BATCH)
