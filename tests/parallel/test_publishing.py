"""Jobs of two workers that publish every second: what readers have in the end is what the checkpoint has."""

import json
import os
import random
import signal

import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.live.publication import records
from tests import published, small
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]
NEXT = "--next"  # of workers/job.py


def _flags(directory, data, service, steps):
    named = dict(data=data, model_dir=directory / "model", out=directory / "out", publish=directory / "to")
    flags = [f"--{name}={value}" for name, value in named.items()]
    limits = ["--loose", "--limits", "--epochs=0", f"--max_steps={steps}", "--step_seconds=0.05"]
    return [*flags, f"--service={service}", *limits]


def _stop_after_three_epochs(directory, sent, *flags):
    """Runs a job whose last training gets a signal on rank 0 while it publishes."""
    job = launch.start(2, launch.WORKERS / "job.py", *flags)
    try:
        epochs = directory / "to" / "generation-0000000001"
        launch.wait_until(lambda: len(list(epochs.glob("epoch-*.json"))) >= 3, "three epochs")
        launch.wait_until(lambda: random.random() < 0.1, "a moment")
        os.kill(int((directory / "out" / "pid-0").read_text()), sent)
        job.communicate(timeout=launch.TIMEOUT_SECONDS)
    finally:
        job.kill()
        job.wait()


def _assert_published_is_trained(directory):
    """Returns the newest record of a publication, and the number of its epochs."""
    checkpoint = latest_checkpoint(directory / "model")
    rows, record, epochs = published.state(directory / "to")
    assert rows == published.weights_of(snapshot.iterate(checkpoint.path, checkpoint.tables))
    assert record.global_step == checkpoint.step
    return record, epochs


def test_killed_resumed_and_stopped_jobs_leave_whole_publications(tmp_path):
    data, directory = small.make(tmp_path, rows=1003), tmp_path / "auto"
    _stop_after_three_epochs(directory, signal.SIGKILL, *_flags(directory, data, "auto", 10_000))
    rows, record, epochs = published.state(directory / "to")  # Every file of it was there and as it was written.
    assert record.generation == 1 and epochs >= 3 and 40 < sum(map(len, rows.values())) <= 50  # 50 is the limit.
    step, stopped = latest_checkpoint(directory / "model").step, directory.parent / "shared"
    resumed = _flags(directory, data, "auto", step + 80)
    _stop_after_three_epochs(stopped, signal.SIGTERM, *resumed, NEXT, *_flags(stopped, data, "shared", 10_000))
    record, epochs = _assert_published_is_trained(directory)
    assert record.generation == 2 and epochs >= 2
    said = json.loads((directory / "out" / "result-0.json").read_text())["publication"]
    assert said["removed"] > 0 and said["waiting"] == said["failures"] == 0
    assert records.find_current(directory / "model" / "publication")[0] == 2
    assert "publication" not in json.loads((directory / "out" / "result-1.json").read_text())
    record, epochs = _assert_published_is_trained(stopped)
    assert record.generation == 1 and epochs >= 3
