"""Workers that wait until they may begin."""

import shutil
import subprocess
import sys

import pytest

from tests.parallel import launch

_WAITING = "import sys; from ctr_trainer.launch.worker import wait_for; wait_for(sys.argv[1]); print('begins')"


@pytest.mark.parametrize(
    ("change", "said"),
    [(lambda gate: gate.touch(), "begins\n"), (lambda gate: shutil.rmtree(gate.parent), "the launcher has ended\n")],
)
def test_workers_begin_with_the_file_of_the_gate_and_end_with_its_directory(tmp_path, change, said):
    gate = tmp_path / "errors" / "job.1.go"
    gate.parent.mkdir()
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=launch.environment())
    with subprocess.Popen([sys.executable, "-c", _WAITING, gate], **pipes) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.1)
        change(gate)
        assert waiting.communicate(timeout=60)[0] == said
