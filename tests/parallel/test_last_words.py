"""What is said last under a real horovodrun."""

import re
import subprocess
import sys

import pytest

from ctr_trainer.checkpoint.checkpoint import list_checkpoints
from tests import small
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]
TRAIN = ("-m", "ctr_trainer", "train")


def _said(output):
    """Returns the output lines of the ranks, in order."""
    return [line.partition(">:")[2] for line in output.splitlines() if line.startswith("[")]


def test_a_wrong_path_is_said_by_one_rank_and_ends_the_job(tmp_path):
    flags = [f"--train_data={tmp_path / 'nowhere'}", f"--model_dir={tmp_path / 'model'}"]
    done = launch.run(2, *TRAIN, *flags, check=False, is_warm=False)  # An import of TensorFlow writes nothing, either.
    assert done.returncode != 0
    (line,) = _said(done.stderr)
    assert line.startswith(f"error: data set {tmp_path / 'nowhere'}: no such directory; run `convert` first")
    below = done.stderr.partition("run `convert` first")[2].splitlines()[1:]
    assert all(re.match(r"Process \d+ exit|Terminating remaining workers", text) for text in below), below


def test_two_workers_that_share_rows_save_nothing_that_diverged(tmp_path):
    flags = [f"--train_data={small.make(tmp_path, rows=200)}", f"--model_dir={tmp_path / 'model'}", "--recipe=none"]
    flags += ["--hidden_units=8", "--batch_size=16", "--save_checkpoints_steps=1", "--embedding_service=shared"]
    done = launch.run(2, *TRAIN, *flags, "--learning_rate=1e30", check=False)
    assert done.returncode != 0
    (line,) = [line for line in _said(done.stderr) if line.startswith("error")]
    assert line.startswith("error: the loss of step 2 is ")
    assert line.endswith("step-0000000001, of step 1: the same command resumes from it")
    assert [each.step for each in list_checkpoints(tmp_path / "model")] == [1]


def test_a_signal_after_its_end_does_not_change_how_a_warm_process_ends():
    late = "type('Late', (), {'__del__': lambda self, kill=os.kill: kill(os.getpid(), 15)})()"
    program = f"import os, socket, start; late = {late}; start._run_by = lambda *given: 3; "
    program += "start.socket.socket.connect = lambda *given: None; start._end_as('', [], '')"
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(launch.START.parent)})
    assert done.returncode == 3
