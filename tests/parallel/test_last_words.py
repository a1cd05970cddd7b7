"""What is said last under a real horovodrun."""

import os
import re
import signal

import pytest

from ctr_trainer.checkpoint.checkpoint import list_checkpoints
from ctr_trainer.system.files.staging import held_directory as held
from tests import small
from tests.parallel import launch

pytestmark = [pytest.mark.integration, pytest.mark.slow]
TRAIN = ("-m", "ctr_trainer", "train")

_WAITING = """
import os, pathlib, sys, time
from ctr_trainer.ranks.endings.report import EndReport
words = EndReport()
words.resume_text = lambda: "The same command resumes from step 7"

def main():
    pathlib.Path(sys.argv[1], os.environ["HOROVOD_RANK"]).touch()
    time.sleep(600)

sys.exit(words.run(main))
"""


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


def _training(directory, *more):
    """Returns the command of a training of `directory / "model"` that saves after each step."""
    flags = [f"--train_data={small.make(directory, rows=200)}", f"--model_dir={directory / 'model'}"]
    flags += ["--recipe=none", "--hidden_units=8", "--batch_size=16", "--save_checkpoints_steps=1"]
    return [*TRAIN, *flags, *more]


def test_a_second_job_in_a_model_directory_is_refused_by_one_rank(tmp_path):
    with held(tmp_path / "model", str):
        done = launch.run(2, *_training(tmp_path), check=False)
    assert done.returncode != 0
    (line,) = [line for line in _said(done.stderr) if line.startswith("error")]
    assert line.startswith(f"error: another job (process {os.getpid()} on host ")
    assert not (tmp_path / "model" / "checkpoints").exists()


def test_two_workers_that_share_rows_save_nothing_that_diverged(tmp_path):
    training = _training(tmp_path, "--embedding_service=shared", "--learning_rate=1e30")
    done = launch.run(2, *training, check=False)
    assert done.returncode != 0
    (line,) = [line for line in _said(done.stderr) if line.startswith("error")]
    assert line.startswith("error: the loss of step 2 is ")
    assert line.endswith("step-0000000001: the same command resumes from it")
    assert [each.step for each in list_checkpoints(tmp_path / "model")] == [1]


def test_ctrl_c_is_said_by_one_rank_with_where_the_job_goes_on(tmp_path):
    job = launch.start(2, "-c", _WAITING, tmp_path, is_warm=False, start_new_session=True)
    try:
        launch.wait_until(lambda: len(list(tmp_path.iterdir())) == 2, "both ranks")
        os.killpg(job.pid, signal.SIGINT)  # As a terminal does: to the launcher and all in its group.
        output, _ = job.communicate(timeout=60)
    finally:
        job.kill()
    (line,) = _said(output)
    assert line.startswith("error: stopped by SIGTERM: Ctrl-C at horovodrun, a scheduler, or by hand. ")
    assert line.endswith("The same command resumes from step 7")
