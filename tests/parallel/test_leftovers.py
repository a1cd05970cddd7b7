"""A job whose launcher is killed leaves nothing behind, and what is left behind is found."""

import contextlib
import os
import subprocess
import sys

import psutil
import pytest

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from tests import small
from tests.parallel import launch, leftovers

_HOLDING = """
import os, socket, tempfile, time
server = socket.create_server(("127.0.0.1", 0))
memory = os.memfd_create("ctr_trainer.rows")
file = tempfile.mkstemp()[1]
open(os.path.join(os.environ["OUTPUT"], "predictions.parquet.0a1b2c3d.tmp"), "w").close()
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""


def test_a_process_its_port_memory_and_files_are_found_until_they_go(tmp_path):
    trace, output = leftovers.Trace.below(tmp_path), tmp_path / "output"
    output.mkdir()
    environment = {**os.environ, **trace.environment, "OUTPUT": str(output)}
    process = subprocess.Popen([sys.executable, "-c", _HOLDING], env=environment, stdout=subprocess.PIPE, text=True)
    with process:
        port = process.stdout.readline().strip()
        kinds = [text.split()[0] for text in leftovers.left_behind(trace, [output], patience=0)]
        assert kinds == ["process", *["port", "memory"] * SharedMemory.is_possible(), "temporary", "draft"]
        assert f"port {port} of process {process.pid}" in leftovers.left_behind(trace, patience=0)
        process.kill()
    assert [text.split()[0] for text in leftovers.left_behind(trace, [output], patience=5)] == ["temporary", "draft"]
    for path in (*trace.temporary.iterdir(), *output.iterdir()):
        path.unlink()
    assert leftovers.left_behind(trace, [output]) == []


@pytest.mark.integration
@pytest.mark.slow
def test_nothing_is_left_of_a_job_whose_launcher_is_killed(tmp_path):
    data, model_dir, trace = small.make(tmp_path, rows=20_000), tmp_path / "model", leftovers.Trace.below(tmp_path)
    flags = [f"--train_data={data}", f"--model_dir={model_dir}", "--model=fm", "--batch_size=64", "--recipe=none"]
    flags += ["--epochs=0", "--max_steps=1000000", "--save_checkpoints_steps=50", "--sync_steps=5", "--log_steps=10"]
    line = launch.command(2, "-m", "ctr_trainer", "train", *flags, "--stall_timeout=30")
    variables = {**launch.environment(), **trace.environment}
    with open(tmp_path / "log", "wb") as log:
        launcher = psutil.Popen(line, env=variables, stdout=log, stderr=log, start_new_session=True)

    def is_saved():
        return launcher.poll() is not None or any(model_dir.glob("checkpoints/*/manifest.json"))

    try:
        launch.wait_until(is_saved, "the first checkpoint", launch.TIMEOUT_SECONDS)
        assert launcher.poll() is None, (tmp_path / "log").read_text()
        trace.look()
        commands = [" ".join(process.cmdline()) for process in trace.processes()]
        for command, count in (("-m ctr_trainer train", 2), ("-m ctr_trainer serve", 1)):
            assert sum(command in each and "horovod" not in each for each in commands) >= count, commands
        launcher.kill()
        launcher.wait(launch.TIMEOUT_SECONDS)
        assert leftovers.left_behind(trace, [model_dir]) == []
    finally:
        for process in trace.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        launcher.wait(launch.TIMEOUT_SECONDS)
