"""Trainings whose rows lie on disk, as a user starts them: killed, resumed, of two workers, and on a damaged disk."""

import os
import re
import signal

import numpy as np
import pytest

from ctr_trainer import cli
from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint import values
from ctr_trainer.embedding.snapshot import snapshot
from tests import small
from tests.parallel import launch

pytest.importorskip("rocksdict", reason="rows on disk need the extra `disk`")
pytestmark = pytest.mark.integration
MEMORY = "3KB"  # Of 41 rows of the 141; a batch has more, which then stay.


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    data = small.make(tmp_path_factory.mktemp("data"), rows=3000)
    return [
        *("-m", "ctr_trainer", "train", f"--train_data={data}", "--model=deepfm", "--hidden_units=8", "--threads=1"),
        *("--batch_size=32", "--epochs=8", "--save_checkpoints_steps=400", "--deterministic", "--recipe=none"),
    ]


@pytest.fixture(scope="module")
def in_memory(given, tmp_path_factory):
    """What a training in memory ends with that was killed after step 400."""
    model = tmp_path_factory.mktemp("model")
    kill_after_400(given, model)
    launch.run(0, *given, f"--model_dir={model}")
    return rows_of(model)


def kill_after_400(given, model):
    job = launch.start(0, *given, f"--model_dir={model}", start_new_session=True)
    launch.wait_until((model / "checkpoints" / "step-0000000400" / "manifest.json").exists, "step 400")
    job.send_signal(signal.SIGKILL)
    job.communicate()


def rows_of(model):
    """Returns the rows of the newest checkpoint by (table, key), its step, and the checksums of its variables."""
    last = checkpoints.latest_checkpoint(str(model))
    last.verify()
    rows = {
        (config.name, key): row.tobytes()
        for config, keys, rows in snapshot.iterate(last.path, last.tables)
        for key, row in zip(keys.tolist(), rows, strict=True)
    }
    return rows, last.step, [entry["crc32"] for entry in last.dense if "data" in entry["file"]]


def test_a_killed_training_resumes_to_the_bit_and_leaves_no_files(given, in_memory, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    (disk / "notes.txt").write_text("a user's")
    model, given = tmp_path / "model", [*given, f"--table_memory={MEMORY}", f"--table_dir={disk}"]
    kill_after_400(given, model)
    assert len(os.listdir(disk)) == 2
    launch.run(0, *given, f"--model_dir={model}")
    assert rows_of(model) == in_memory
    assert os.listdir(disk) == ["notes.txt"]
    newest = checkpoints.latest_checkpoint(str(model))
    assert sum(entry["rows"] for entry in newest.tables if entry["kind"] == snapshot.COLD) > 20
    shown = values.rows_of(newest, [key for _, key in in_memory[0]])
    assert {place: np.float32(row["weights"] + row["state"]).tobytes() for place, row in shown.items()} == in_memory[0]


def test_workers_train_rows_of_shards_on_disk(given, tmp_path):
    model = tmp_path / "model"
    arguments = [*given, f"--model_dir={model}", f"--table_memory={MEMORY}", "--service_shards=2", "--sync_steps=1"]
    output = launch.run(2, *arguments, "--publish=" + str(tmp_path / "published")).stderr
    rows, step, _ = rows_of(model)
    newest = checkpoints.latest_checkpoint(str(model))
    shards = {entry["file"][:20] for entry in newest.tables if entry["kind"] == snapshot.COLD}
    assert len(shards) >= 2, newest.tables
    assert re.search(r"\[RunStatus\]: dim4 => rows in memory: .*on disk: [1-9]", output)
    assert os.listdir(model / "rows") == []
    # One worker goes on with the rows of two shards.
    launch.run(0, *given, f"--model_dir={model}", f"--table_memory={MEMORY}", "--epochs=9")
    assert rows_of(model)[0].keys() >= rows.keys()


def test_a_damaged_file_of_rows_is_named(given, tmp_path, capfd):
    model = tmp_path / "model"
    arguments = [*given, f"--model_dir={model}", f"--table_memory={MEMORY}"]
    launch.run(0, *arguments, "--epochs=1")
    newest = checkpoints.latest_checkpoint(str(model))
    files = [model / "checkpoints" / newest.path.rpartition("/")[2] / entry["file"] for entry in newest.tables]
    rows = max((file for file in files if file.suffix == ".sst"), key=lambda file: file.stat().st_size)
    data = bytearray(rows.read_bytes())
    data[100] ^= 1
    rows.write_bytes(data)
    assert cli.main(["export", f"--model_dir={model}", f"--export_dir={tmp_path / 'export'}"]) != 0
    assert re.search(rf"Corruption.*{rows.name[-10:]}.*the disk returned other bytes", capfd.readouterr().err)
    rows.write_bytes(data[:-1])
    failed = launch.run(0, *arguments, "--epochs=2", check=False)
    assert failed.returncode and re.search(rf"{rows.name}: \d+ bytes, not \d+: truncated", failed.stderr)
