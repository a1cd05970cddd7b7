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

# How each job is ended first, while it publishes.
SIGNALS = {"auto": signal.SIGKILL, "shared": signal.SIGTERM}
SERVICES = tuple(SIGNALS)
NEXT = "--next"  # of workers/job.py


def _flags(directory, data, service, steps):
    named = dict(data=data, model_dir=directory / "model", out=directory / "out", publish=directory / "to")
    flags = [f"--{name}={value}" for name, value in named.items()]
    return [*flags, f"--service={service}", "--loose", "--limits", "--epochs=0", f"--max_steps={steps}"]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The directory of trainings, by service, whose rank 0 received a signal while it published; and their data."""
    root = tmp_path_factory.mktemp("published")
    data = small.make(root, rows=1003)
    for service in SERVICES:
        directory = root / service
        flags = [*_flags(directory, data, service, 10_000), "--step_seconds=0.05"]
        job = launch.start(2, launch.WORKERS / "job.py", *flags)
        try:
            epochs = directory / "to" / "generation-0000000001"
            launch.wait_until(lambda epochs=epochs: len(list(epochs.glob("epoch-*.json"))) >= 3, "three epochs")
            launch.wait_until(lambda: random.random() < 0.1, "a moment")
            os.kill(int((directory / "out" / "pid-0").read_text()), SIGNALS[service])
            job.communicate(timeout=launch.TIMEOUT_SECONDS)
        finally:
            job.kill()
            job.wait()
    return root, data


@pytest.fixture(scope="module")
def ended(stopped):
    """(directory, publications of each, rows and step of the training stopped in order), after all were resumed."""
    root, data = stopped
    states = {service: published.state(root / service / "to") for service in SERVICES}
    of_stopped = _trained(root / "shared"), latest_checkpoint(root / "shared" / "model").step
    arguments = []
    for service in SERVICES:
        step = latest_checkpoint(root / service / "model").step
        arguments += [NEXT, *_flags(root / service, data, service, step + 80), "--step_seconds=0.05"]
    launch.run(2, launch.WORKERS / "job.py", *arguments[1:], seconds=2 * launch.TIMEOUT_SECONDS)
    return root, states, *of_stopped


def _trained(directory):
    """Returns a dict of key -> weights, by table, for the last checkpoint."""
    checkpoint = latest_checkpoint(directory / "model")
    return published.weights_of(snapshot.iterate(checkpoint.path, checkpoint.tables))


def test_a_killed_job_leaves_whole_records_and_a_stopped_one_its_last_step(ended):
    rows, record, epochs = ended[1]["auto"]  # Every file of it was there and as it was written.
    assert record.generation == 1 and epochs >= 3 and 40 < sum(map(len, rows.values())) <= 50  # 50 is the limit.
    rows, record, epochs = ended[1]["shared"]
    assert rows == ended[2] and epochs >= 3
    assert record.global_step == ended[3]


@pytest.mark.parametrize("service", SERVICES)
def test_what_is_published_in_the_end_is_what_the_checkpoint_has(ended, service):
    directory = ended[0] / service
    checkpoint = latest_checkpoint(directory / "model")
    rows, record, epochs = published.state(directory / "to")
    assert rows == _trained(directory)
    assert record.global_step == checkpoint.step and record.generation == 2 and epochs >= 2
    said = json.loads((directory / "out" / "result-0.json").read_text())["publication"]
    assert said["removed"] > 0 and said["waiting"] == said["failures"] == 0
    assert records.read_publication(directory / "model" / "publication").generation == 2
    assert "publication" not in json.loads((directory / "out" / "result-1.json").read_text())
