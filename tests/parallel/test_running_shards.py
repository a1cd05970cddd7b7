"""A training on shards that run by themselves: killed, gone on with, and evaluated beside them."""

import contextlib
import json
import os
import signal

import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.embedding.service.client import ServiceClient
from tests import small
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def address(tmp_path):
    """host:port of a service that ends with the test."""
    with launch.service(tmp_path, tmp_path) as address:
        yield address


def test_a_killed_training_resumes_on_two_hosts_and_both_evaluate(address, tmp_path):
    flags = [f"--data={small.make(tmp_path / 'd', rows=1003)}", f"--model_dir={tmp_path / 'model'}", "--epochs=0"]

    def arguments(name, *more):
        return [launch.WORKERS / "job.py", *flags, f"--out={tmp_path / name}", "--loose", *more]

    shards = ("--max_steps=60", f"--service={address}", "--evaluate")
    job = launch.start(2, *arguments("killed", *shards, "--step_seconds=0.1"))
    launch.wait_until(lambda: latest_checkpoint(tmp_path / "model"), "a checkpoint", 180)
    os.kill(int((tmp_path / "killed" / "pid-0").read_text()), signal.SIGKILL)
    job.communicate(timeout=240)
    assert latest_checkpoint(tmp_path / "model").step < 60

    # One machine under two names: two ranks share rows in memory, the third one has its own.
    launch.run(3, *arguments("again", *shards), hosts="localhost:2,127.0.0.1:1")
    assert latest_checkpoint(tmp_path / "model").step == 60
    launch.run(0, *arguments("alone", "--max_steps=1", "--evaluate"))
    one = json.loads((tmp_path / "alone" / "metrics-0.json").read_text())
    for rank in range(3):
        metrics = json.loads((tmp_path / "again" / f"metrics-{rank}.json").read_text())
        assert metrics["examples"] == 1003
        assert metrics["auc"] == pytest.approx(one["auc"], abs=1e-6)
    with contextlib.closing(ServiceClient([address], 60)) as reader:
        # Only training asked the shards: evaluation and prediction read rows by `pull`.
        assert set(reader.stats()["services"][address]["requests"]) <= {"pull_newer", "put", "sync"}
