"""One job in a model directory: what a second one is told, and that the lock ends with its process."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

from ctr_trainer import cli
from ctr_trainer.system.files.lease import Owner
from ctr_trainer.system.files.staging import held_directory as held
from ctr_trainer.system.messages.errors import UserError
from tests import small

ROOT = pathlib.Path(__file__).parents[2]
HOLDER = """
import sys
from ctr_trainer.system.files.staging import held_directory
with held_directory(sys.argv[1], str):
    print("held", flush=True)
    sys.stdin.read()
"""


def _refusal(holder):
    return f"held by {holder}"


@contextlib.contextmanager
def _other_job(directory):
    """A process that holds the directory within the block, or until it is killed."""
    command = [sys.executable, "-c", HOLDER, str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.stdin.close()


def test_a_second_holder_is_told_the_process_and_host_of_the_first(tmp_path):
    with _other_job(tmp_path / "model") as other:
        with pytest.raises(
            UserError, match=rf"held by process {other.pid} on host {socket.gethostname()} since 20\d\d"
        ):
            with held(tmp_path / "model", _refusal):
                pass
        other.send_signal(signal.SIGKILL)
        with held(tmp_path / "model", _refusal):
            assert Owner.of_json((tmp_path / "model" / ".lock").read_text()).process == os.getpid()
    with held(tmp_path / "new", _refusal):
        pass
    assert os.listdir(tmp_path) == ["model"]  # What was made for it and is empty goes with it.


def test_a_second_training_of_a_model_is_refused_and_its_evaluation_is_not(tmp_path, capsys):
    data, model = small.make(tmp_path, rows=200), tmp_path / "model"
    flags = [f"--train_data={data}", f"--eval_data={data}", f"--model_dir={model}", "--hidden_units=8", "--threads=1"]
    assert cli.main(["train", *flags, "--batch_size=32", "--max_steps=2"]) == 0
    before = sorted(os.listdir(model / "checkpoints"))
    with _other_job(model) as other:  # `held_directory` itself ends with a kill, see above.
        assert cli.main(["train", *flags, "--batch_size=32", "--epochs=9"]) == 1
        error = capsys.readouterr().err
        assert f"error: another job (process {other.pid} on host {socket.gethostname()} since " in error
        assert f"trains the model in {model}: wait until it ends, stop it, or name another model_dir" in error
        assert sorted(os.listdir(model / "checkpoints")) == before
        assert cli.main(["evaluate", *flags]) == 0
