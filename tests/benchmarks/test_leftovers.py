"""What `benchmarks/leftovers.py` finds of a job, and that a job whose launcher is killed leaves nothing."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from ctr_trainer.embedding.memory.shared_memory import SharedMemory

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def leftovers(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import leftovers

    return leftovers


_HOLDING = """
import os, socket, tempfile, time
server = socket.create_server(("127.0.0.1", 0))
memory = os.memfd_create("ctr_trainer.rows")
file = tempfile.mkstemp()[1]
open(os.path.join(os.environ["OUTPUT"], "predictions.parquet.0a1b2c3d.tmp"), "w").close()
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""


def test_a_process_its_port_its_memory_and_its_files_are_found_until_they_are_gone(leftovers, tmp_path):
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
def test_nothing_is_left_of_a_job_whose_launcher_is_killed(leftovers, tmp_path):
    leftovers.make_data(tmp_path)
    assert leftovers.left_after("launcher_sigkill", tmp_path) == []


def test_there_are_twenty_kinds_of_end_and_each_signal_is_among_them(leftovers):
    assert len(leftovers.ENDS) == 20
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP):
        assert [name for name in leftovers.ENDS if name.endswith(number.name.lower())]
