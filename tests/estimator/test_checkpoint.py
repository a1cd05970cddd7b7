"""One checkpoint in a model directory: when it exists, what it holds, and what removes it."""

import json
import os

from ctr_trainer import cli
from ctr_trainer.estimator import checkpoint as checkpoints
from ctr_trainer.estimator import retention
from ctr_trainer.system.files.lease import FileLease
from ctr_trainer.system.messages.errors import UserError


def _save(model_dir, step, content=b"weights"):
    path = checkpoints.checkpoint_path(model_dir, step)
    checkpoints.begin(path)
    with open(os.path.join(path, "dense.data"), "wb") as file:
        file.write(content)
    return checkpoints.commit(path, step, tables=[], position={"epoch": 1}, examples=7)


def test_the_newest_finished_checkpoint_is_the_latest(tmp_path):
    assert checkpoints.latest_checkpoint(tmp_path) is None
    _save(tmp_path, 9)
    newest = _save(tmp_path, 10)
    assert checkpoints.latest_checkpoint(tmp_path) == newest
    assert (newest.step, newest.examples, newest.position) == (10, 7, {"epoch": 1})


def test_beginning_again_removes_what_an_unfinished_one_left(tmp_path):
    path = checkpoints.checkpoint_path(tmp_path, 10)
    checkpoints.begin(path)
    open(os.path.join(path, "dense.half"), "w").close()
    assert [entry["file"] for entry in _save(tmp_path, 10).dense] == ["dense.data"]
    assert not os.path.exists(os.path.join(path, "dense.half"))


def test_the_last_k_stay(tmp_path):
    for step in (1, 2, 3, 4):
        _save(tmp_path, step)
    retention.remove_old(tmp_path, keep=0)
    assert len(checkpoints.list_checkpoints(tmp_path)) == 4
    retention.remove_old(tmp_path, keep=2)
    assert [checkpoint.step for checkpoint in checkpoints.list_checkpoints(tmp_path)] == [3, 4]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["step-0000000003", "step-0000000004"]


def test_the_manifest_is_json_that_people_can_read(tmp_path):
    saved = _save(tmp_path, 1)
    with open(os.path.join(saved.path, "manifest.json")) as file:
        manifest = json.load(file)
    assert manifest["dense"] == [{"file": "dense.data", "bytes": 7, "crc32": 449999704}]


def test_what_a_killed_process_has_left_of_checkpoints_goes_and_nothing_else_does(tmp_path):
    kept = [_save(tmp_path, 10).path, str(tmp_path / "checkpoints" / "refused-step-0000000030"), str(tmp_path / "best")]
    left = [checkpoints.checkpoint_path(tmp_path, 20), str(tmp_path / "best" / "draft-step-0000000010")]
    for path in (*kept[1:], *left):
        os.makedirs(path, exist_ok=True)
    retention.remove_unfinished(tmp_path)
    assert [path for path in (*kept, *left) if os.path.exists(path)] == kept


def test_a_lock_that_is_lost_while_rows_are_written_leaves_no_checkpoint_of_this_job(
    data, tmp_path, monkeypatch, capsys
):
    model, taken = tmp_path / "model", []
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
