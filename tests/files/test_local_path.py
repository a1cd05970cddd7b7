import json
import os

import pytest

from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.checkpoint.model_directory import load_features
from ctr_trainer.commands.reports.training_run import read_runs
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.messages.errors import UserError


@pytest.fixture
def calls(monkeypatch):
    """What reaches the operating system, in order: ("fsync", path) and ("rename", from, to)."""
    done, fsync, replace = [], os.fsync, os.replace

    def record_fsync(handle):
        done.append(("fsync", os.readlink(f"/proc/self/fd/{handle}")))
        fsync(handle)

    def record_replace(source, target):
        done.append(("rename", str(source), str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    return done


def test_bytes_are_on_the_disk_before_the_name_and_the_name_before_the_return(tmp_path, calls):
    path = str(tmp_path / "new" / "values.json")
    LocalPath(path).write_json({"a": 1})
    assert json.loads(open(path).read()) == {"a": 1}
    (_, draft), (_, source, target), (_, directory) = calls
    assert (source, target, directory) == (draft, path, str(tmp_path / "new"))
    assert os.path.dirname(draft) == directory


def test_a_failed_write_leaves_the_file_as_it_was_and_no_draft(tmp_path):
    path = tmp_path / "values.json"
    LocalPath(path).write_json({"a": 1})
    with pytest.raises(ZeroDivisionError), LocalPath(path).writing():
        raise ZeroDivisionError
    assert json.loads(path.read_text()) == {"a": 1} and os.listdir(tmp_path) == ["values.json"]
    with pytest.raises(UserError, match="/dev/null/x: cannot be written: "):
        LocalPath("/dev/null/x").write_text("")
    (tmp_path / "values.json.tmp").write_text("mine")
    LocalPath(path).write_json({})
    assert (tmp_path / "values.json.tmp").read_text() == "mine"


def test_who_waits_for_a_file_may_remove_its_directory_at_once(tmp_path, monkeypatch):
    replace, read = os.replace, []

    def taken_away(draft, path):
        replace(draft, path)
        read.append(open(path).read())
        os.unlink(path)
        os.rmdir(os.path.dirname(path))

    monkeypatch.setattr(os, "replace", taken_away)
    LocalPath(tmp_path, "new", "address").write_text("127.0.0.1:1")
    assert read == ["127.0.0.1:1"]


@pytest.mark.parametrize(
    ("text", "why"), [("", "is empty"), ('{"a": ', "is cut off or altered"), ("[]", "no JSON object")]
)
@pytest.mark.parametrize(
    ("name", "read", "cure"),
    [
        ("features.json", load_features, "model_dir"),
        ("evaluations.json", EvaluationHistory.load, "evaluations"),
        ("train_summary.json", lambda path: read_runs([path]), "train"),
    ],
)
def test_a_file_that_is_empty_or_cut_off_is_named_with_the_cure(tmp_path, name, read, cure, text, why):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=f"{name}: .*{why}.*; .*{cure}"):
        read(tmp_path)
