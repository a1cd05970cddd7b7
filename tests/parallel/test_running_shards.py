"""A training on a shard that runs by itself, evaluated next to it."""

import contextlib
import json

import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint
from ctr_trainer.embedding.service.client import ServiceClient
from tests import small
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_three_workers_on_two_hosts_and_a_lone_process_have_the_same_metrics(tmp_path):
    flags = [f"--data={small.make(tmp_path / 'd', rows=1003)}", f"--model_dir={tmp_path / 'model'}", "--epochs=0"]

    def arguments(name, *more):
        return [launch.WORKERS / "job.py", *flags, f"--out={tmp_path / name}", "--loose", "--evaluate", *more]

    with launch.service(tmp_path, tmp_path) as address:
        # One machine under two names: two ranks share rows in memory, the third one has its own.
        training = arguments("three", "--max_steps=30", f"--service={address}")
        launch.run(3, *training, hosts="localhost:2,127.0.0.1:1")
        with contextlib.closing(ServiceClient([address], 60)) as reader:
            # Only training asked the shards: evaluation and prediction read rows by `pull`.
            assert set(reader.stats()["services"][address]["requests"]) <= {"pull", "put", "sync"}
    assert latest_checkpoint(tmp_path / "model").step == 30
    launch.run(0, *arguments("alone", "--max_steps=1"))
    one = json.loads((tmp_path / "alone" / "metrics-0.json").read_text())
    for rank in range(3):
        metrics = json.loads((tmp_path / "three" / f"metrics-{rank}.json").read_text())
        assert metrics["examples"] == 1003
        assert metrics["auc"] == pytest.approx(one["auc"], abs=1e-6)
