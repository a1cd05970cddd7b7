"""Jobs that train from a real broker, and are killed."""

import contextlib
import json
import signal
import subprocess

import numpy as np
import psutil
import pytest

from ctr_trainer.checkpoint.checkpoint import latest_checkpoint, list_checkpoints
from ctr_trainer.live.publication.places import open_reader
from tests import checkpoints
from tests.parallel import launch
from tests.stream import brokers

pytestmark = [pytest.mark.integration, pytest.mark.slow]
# A row's accumulator grows by its squared gradient whenever it is trained. At a learning rate of 0 the gradient is the
# same but for the number n of examples in the worker's batch: the square is (64 / n)^2 times that of a batch of 64. A
# record that was trained twice, in batches of 64 or 32, has 2, 5 or 8 times that square, and no n is right for these.
STILL = ("--model=lr", "--learning_rate=0", "--embedding_learning_rate=0", "--embedding_optimizer=adagrad")
INITIAL = 1e-4
SPEC = """
name = "clicks"

[label]
column = "clicked"

[[sparse]]
columns = ["user", "item"]
dim = 1
"""


def records(first, last):
    return [{"user": f"user {n}", "item": n % 7, "clicked": n % 2} for n in range(first, last)]


def command(workers, directory, model, address, *more):
    (directory / "spec.toml").write_text(SPEC)
    data = [f"--train_data=kafka://{address}/clicks", f"--feature_spec={directory / 'spec.toml'}"]
    steps = [f"--batch_size={64 // max(workers, 1)}", "--stream_wait_secs=20", "--save_checkpoints_steps=7"]
    model = f"--model_dir={directory / model}"
    line = launch.command(workers, "-m", "ctr_trainer", "train", *STILL, model, *data, *steps, *more)
    return launch.warmed(line)


def run(line):
    done = subprocess.run(
        line, env=launch.environment(), capture_output=True, text=True, timeout=launch.TIMEOUT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done


def trained(directory, model):
    """Returns the number of trained records according to the newest checkpoint; 0 without a checkpoint."""
    found = latest_checkpoint(directory / model)
    return found.position["records"] if found and found.position else 0


def values(directory, model):
    """Returns the dense variables of the newest checkpoint, its sorted keys and the rows with their accumulators."""
    return checkpoints.values(latest_checkpoint(directory / model))


def kill(job):
    """Kills all processes of a job that has not ended."""
    for process in [] if job.poll() is not None else [*psutil.Process(job.pid).children(recursive=True), job]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    job.wait()


def kill_after(directory, model, count, line):
    """Runs a job until a checkpoint has `count` records or more, then kills all of its processes."""
    with open(directory / "log", "w", encoding="utf-8") as log:
        job = subprocess.Popen(line, env=launch.environment(), stdout=log, stderr=log)
        try:
            launch.wait_until(
                lambda: trained(directory, model) >= count or job.poll() is not None, f"a checkpoint of {count} records"
            )
        finally:
            kill(job)
    assert trained(directory, model) >= count, (directory / "log").read_text(encoding="utf-8")


def test_a_job_waits_for_its_broker_and_ends_in_order_on_a_quiet_stream(tmp_path):
    log = tmp_path / "log"
    with brokers.tansu() as broker, open(log, "w", encoding="utf-8") as output:
        brokers.make_topic(broker.address, "clicks", 3)
        brokers.produce(broker.address, "clicks", records(0, 500), partitions=3)
        arguments = ["--stream_wait_secs=0.5", "--save_checkpoints_secs=2"]
        line = command(2, tmp_path, "model", broker.address, *arguments)
        line = [each for each in line if not each.startswith("--save_checkpoints_steps")]
        job = subprocess.Popen(line, env=launch.environment(), stdout=output, stderr=output)
        try:
            launch.wait_until(lambda: trained(tmp_path, "model") == 500, "a checkpoint of all records")
            broker.stop()
            launch.wait_until(lambda: "waiting: kafka topic clicks at" in log.read_text(), "the log to say so")
            broker.resume()
            brokers.produce(broker.address, "clicks", records(500, 800), partitions=3)
            launch.wait_until(lambda: trained(tmp_path, "model") == 800, "a checkpoint of the further records")
            for process in psutil.Process(job.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    line = process.cmdline()
                    if "train" in line and "python" in line[0]:
                        process.send_signal(signal.SIGTERM)
            job.wait(launch.TIMEOUT_SECONDS)
        finally:
            kill(job)
    assert trained(tmp_path, "model") == 800
    text = log.read_text()
    assert "stopped by SIGTERM" in text and "[RunStatus]: Stream statistics => lag: 0 records" in text


def test_validation_windows_go_by_event_time(tmp_path):
    """3,200 records, one per second, in 200 batches of 16."""
    with brokers.tansu() as broker:
        brokers.make_topic(broker.address, "clicks", 2)
        noon = 1_767_268_800.0
        brokers.produce(broker.address, "clicks", records(0, 3200), 2, lambda number: noon + number)
        line = command(2, tmp_path, "model", broker.address, "--stream_until=latest", "--log_steps=2")
        line = [each for each in line if not each.startswith(("--save_checkpoints", "--stream_wait_secs"))]
        line += ["--batch_size=8", "--save_checkpoints_steps=40"]
        line += ["--validation_window_secs=900", "--keep_checkpoint_max=0", f"--publish={tmp_path / 'published'}"]
        done = run(line)
    found = [each.position["records"] for each in list_checkpoints(tmp_path / "model")]
    assert found[-1] == 3200
    lines = [json.loads(each) for each in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    ended = [each for each in lines if "auc_event_window" in each]
    assert len(ended) == 3 and all({"xentropy_event_window", "copc_event_window"} <= each.keys() for each in ended)
    assert "event time = 2026-01-01T12:" in done.stderr
    with contextlib.closing(open_reader(str(tmp_path / "published"))) as reader:
        while reader.refresh():
            reader.advance()
        assert reader.record.stream == {"event_seconds": noon + 3199, "lag_records": 0}


def test_killed_jobs_of_one_and_two_workers_train_each_record_once(tmp_path):
    with brokers.tansu() as broker:
        brokers.make_topic(broker.address, "clicks", 2)
        brokers.produce(broker.address, "clicks", records(0, 1920), partitions=2)
        kill_after(tmp_path, "model", 448, command(2, tmp_path, "model", broker.address))
        first = trained(tmp_path, "model")
        brokers.produce(broker.address, "clicks", records(1920, 3200), partitions=2)
        kill_after(tmp_path, "model", first + 448, command(0, tmp_path, "model", broker.address))
        brokers.produce(broker.address, "clicks", records(3200, 3840), partitions=2)
        until = "--stream_until=latest"
        run(command(2, tmp_path, "model", broker.address, until))
        run(command(0, tmp_path, "undisturbed", broker.address, until))
    assert trained(tmp_path, "model") == trained(tmp_path, "undisturbed") == 3840
    found, wanted = values(tmp_path, "model"), values(tmp_path, "undisturbed")
    np.testing.assert_array_equal(found["keys"], wanted["keys"])
    sums, expected = (each["rows"][:, -1] - INITIAL for each in (found, wanted))
    square = np.median(expected)
    users = np.flatnonzero(expected < 1.5 * square)  # Not the seven items.
    assert len(users) == 3840
    examples = 64 / np.sqrt(sums[users] / square)
    np.testing.assert_allclose(examples, np.round(examples), atol=0.02)
    assert latest_checkpoint(tmp_path / "model").position["next"] == {"0": 1920, "1": 1920}
