"""Checkpoints of a job that has lost its model directory to another one."""

from ctr_trainer import cli
from ctr_trainer.estimator import checkpoint as checkpoints
from ctr_trainer.estimator import retention
from ctr_trainer.files.lease import FileLease
from ctr_trainer.messages.errors import UserError
from tests import small


def test_a_lock_that_is_lost_while_rows_are_written_leaves_no_checkpoint_of_this_job(tmp_path, monkeypatch, capsys):
    data, model, taken = small.make(tmp_path / "data", rows=200), tmp_path / "model", []
    extend = retention.extend

    def extended(path, files, base):
        if checkpoints.step_of(path) == 4:
            taken.append(path)  # Another job takes the lock after rows and variables were captured.
        return extend(path, files, base)

    def check(lock):
        if taken:
            raise UserError("another process has taken the lock")

    monkeypatch.setattr(retention, "extend", extended)
    monkeypatch.setattr(FileLease, "check", check)
    given = [f"--train_data={data}", f"--model_dir={model}", "--hidden_units=8", "--batch_size=16"]
    assert cli.main(["train", *given, "--save_checkpoints_steps=2", "--max_steps=8"]) == 1
    assert taken and "another process has taken the lock" in capsys.readouterr().err
    assert [each.step for each in checkpoints.list_checkpoints(model)][-1] == 2
