"""Workers that wait until they may begin."""

import os
import subprocess
import sys

import pytest

from ctr_trainer.launch.worker import wait_for
from tests.parallel import launch

_CODE = "import sys; from ctr_trainer.launch.worker import wait_for; wait_for(sys.argv[1]); print('begins')"
_WAITING = [sys.executable, "-c", _CODE]


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda gate: gate.write(b"12"), "begins\n"), (lambda gate: gate.close(), "the launcher has ended\n")],
)
def test_waiting_workers_begin_with_a_byte_each_or_end_with_the_launcher(tmp_path, change, said):
    path = tmp_path / "job.1.go"
    os.mkfifo(path)
    gate = open(path, "r+b", buffering=0)
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=launch.environment())
    with subprocess.Popen([*_WAITING, path], **pipes) as first, subprocess.Popen([*_WAITING, path], **pipes) as second:
        with pytest.raises(subprocess.TimeoutExpired):
            first.wait(0.1)
        change(gate)
        assert first.communicate(timeout=60)[0] == second.communicate(timeout=60)[0] == said
    gate.close()


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_worker_that_comes_after_the_end_of_the_launcher_ends(tmp_path, is_removed):
    if not is_removed:
        os.mkfifo(tmp_path / "job.1.go")
    with pytest.raises(SystemExit, match="the launcher has ended"):
        wait_for(str(tmp_path / "job.1.go"))
