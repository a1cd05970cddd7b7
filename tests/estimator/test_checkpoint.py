"""One checkpoint in a model directory or in a store: when it exists, what it holds, and what removes it."""

import json
import os
import re
import zlib

import pytest

from ctr_trainer import cli
from ctr_trainer.checkpoint import checkpoint as checkpoints
from ctr_trainer.checkpoint import retention
from ctr_trainer.checkpoint.evaluations import EvaluationHistory
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.system.files.lease import FileLease
from ctr_trainer.system.messages.errors import UserError, is_loss
from tests import object_store
from tests.estimator.test_whole_checkpoints import Job, keys_of
from tests.files.failing_proxy import FailingProxy


def _save(model_dir, step, content=b"weights"):
    path = checkpoints.checkpoint_path(model_dir, step)
    checkpoints.begin(path)
    with open(os.path.join(path, "dense.data"), "wb") as file:
        file.write(content)
    return checkpoints.commit(checkpoints.Checkpoint(path, step, [], [], {"epoch": 1}, 7))


def test_the_newest_finished_checkpoint_is_the_latest(tmp_path):
    assert checkpoints.latest_checkpoint(tmp_path) is None
    _save(tmp_path, 9)
    newest = _save(tmp_path, 10)
    assert checkpoints.latest_checkpoint(tmp_path) == newest
    assert (newest.step, newest.examples, newest.position) == (10, 7, {"epoch": 1})
    with open(os.path.join(newest.path, "manifest.json")) as file:
        assert json.load(file)["dense"] == [{"file": "dense.data", "bytes": 7, "crc32": 449999704}]


def test_beginning_again_removes_what_an_unfinished_one_left(tmp_path):
    path = checkpoints.checkpoint_path(tmp_path, 10)
    checkpoints.begin(path)
    open(os.path.join(path, "dense.half"), "w").close()
    assert [entry["file"] for entry in _save(tmp_path, 10).dense] == ["dense.data"]
    assert not os.path.exists(os.path.join(path, "dense.half"))


@pytest.mark.parametrize("name", ["../victim", "{directory}/victim", "s3://tests/other"])
def test_a_manifest_that_names_a_file_elsewhere_is_refused(store, tmp_path, monkeypatch, name):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # The directories for local copies are made there.
    (tmp_path / "victim").write_text("mine")
    store.put("elsewhere/checkpoints/victim", b"evil")
    path = f"s3://{object_store.BUCKET}/elsewhere/checkpoints/step-0000000010"
    entry = {"file": name.format(directory=tmp_path), "bytes": 4, "crc32": zlib.crc32(b"evil")}
    values = {"step": 10, "tables": [], "dense": [entry], "position": None, "examples": 0}
    store.put(f"elsewhere/checkpoints/step-0000000010/{checkpoints.MANIFEST}", _manifest(values))
    with pytest.raises(UserError, match="manifest.json .* outside of its directory"):
        with checkpoints.load(path).with_local_dense():
            pass
    assert (tmp_path / "victim").read_text() == "mine"


def _manifest(values):
    return json.dumps(values | {"crc32": zlib.crc32(json.dumps(values, sort_keys=True).encode())}).encode()


def test_only_a_killed_processs_remains_of_checkpoints_are_removed(tmp_path):
    kept = [_save(tmp_path, 10).path, str(tmp_path / "checkpoints" / "refused-step-0000000030"), str(tmp_path / "best")]
    left = [checkpoints.checkpoint_path(tmp_path, 20), str(tmp_path / "best" / "draft-step-0000000010")]
    for path in (*kept[1:], *left):
        os.makedirs(path, exist_ok=True)
    retention.remove_unfinished(tmp_path)
    assert [path for path in (*kept, *left) if os.path.exists(path)] == kept


def test_a_lock_lost_while_rows_are_written_leaves_no_checkpoint(data, tmp_path, monkeypatch, capsys):
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


def test_rows_that_rank_0_does_not_find_make_no_checkpoint(data, tmp_path, monkeypatch, capsys):
    model, begin_save = tmp_path / "model", LocalStore.begin_save

    def elsewhere(store, path, step, *given):
        files = begin_save(store, path, step, *given)()
        if step == 4:  # As of a shard whose local disk has the same path.
            os.unlink(os.path.join(path, files[-1]["file"]))
        return lambda: files

    monkeypatch.setattr(LocalStore, "begin_save", elsewhere)
    given = [f"--train_data={data}", f"--model_dir={model}", "--hidden_units=8", "--batch_size=16"]
    assert cli.main(["train", *given, "--save_checkpoints_steps=2", "--max_steps=8"]) == 1
    assert re.search(r"step-0000000004/\S+: a shard wrote \d+ bytes there, and .* finds 0:", capsys.readouterr().err)
    assert [each.step for each in checkpoints.list_checkpoints(model)] == [2]


MODEL = f"s3://{object_store.BUCKET}/model"


def test_a_checkpoint_is_there_with_its_manifest_and_goes_with_it(store):
    assert checkpoints.list_checkpoints(MODEL) == [] and EvaluationHistory.load(MODEL).evaluations == []
    job = Job(MODEL)
    job.store.save(checkpoints.checkpoint_path(MODEL, 7), 7)
    assert checkpoints.list_checkpoints(MODEL) == []  # Its manifest is missing.
    written = [job.save(step) for step in range(1, 5)]
    assert checkpoints.list_checkpoints(MODEL) == written
    assert [each.chain_length for each in written] == [1, 1, 2, 3]
    assert [keys_of(each) for each in written] == [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]
    with written[1].with_local_dense() as local:
        assert open(f"{local.dense_prefix}.data").read() == "weights of 2"
    restored = LocalStore()
    restored.restore(written[3].path, written[3].tables)
    assert sorted(restored.tables["t"].keys.tolist()) == [1, 2, 3, 4]

    store.put("model/checkpoints/step-0000000004/dense.data", b"other")
    assert checkpoints.newest_whole(MODEL).step == 3
    retention.set_aside(MODEL, 3, "refused")
    assert [each.step for each in checkpoints.list_checkpoints(MODEL)] == [1, 2, 3]
    assert "model/checkpoints/refused-step-0000000004/manifest.json" in store.keys("model")

    retention.keep_best(MODEL, written[0].path)
    retention.keep_best(MODEL, written[1].path)
    retention.remove_other_bests(MODEL, 2)
    assert checkpoints.directories(MODEL, checkpoints.BEST) == [f"{MODEL}/best/step-0000000002"]
    assert checkpoints.whole(MODEL, 2, [checkpoints.BEST]).examples == 2
    retention.remove_old(MODEL, keep=1)
    assert [each.step for each in checkpoints.list_checkpoints(MODEL)] == [1, 3]  # 2 and 3 are one chain.
    assert not [key for key in store.keys("model") if "checkpoints/step-0000000002" in key or "draft" in key]
    with pytest.raises(UserError, match="there is no checkpoint of step 9 in s3://tests/model; there are: 1, 3"):
        checkpoints.whole(MODEL, 9)
    history = EvaluationHistory([{"step": 3, "auc": 0.5}])
    history.save(MODEL)
    assert EvaluationHistory.load(MODEL) == history


@pytest.mark.parametrize("larger", [False, True])
def test_a_chain_in_a_store_has_no_file_that_the_store_cannot_copy(store, tmp_path, monkeypatch, larger):
    for model_dir in (f"s3://{object_store.BUCKET}/larger-{larger}", tmp_path):
        job = Job(model_dir)
        sizes = [each["bytes"] for step in (1, 2) for each in job.save(step).tables]
        monkeypatch.setattr(retention, "MOST_COPIED", max(sizes) - larger)
        assert job.save(3).chain_length == (1 if larger and model_dir != tmp_path else 2)


def test_a_store_that_does_not_answer_does_not_make_a_checkpoint_a_damaged_one(store, monkeypatch, caplog):
    model = f"s3://{object_store.BUCKET}/outage"
    job = Job(model)
    for step in (1, 2):
        job.save(step)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    for name in ("step-0000000002/manifest.json", "step-0000000002/dense.data"):
        with FailingProxy(store.host_port, failing=f"GET /{object_store.BUCKET}/outage/checkpoints/{name}") as proxy:
            seen = f"{model}?endpoint_override={proxy.address}&scheme=http"
            looks = [lambda: checkpoints.newest_whole(seen), lambda: checkpoints.whole(seen, 2)]  # noqa: B023
            looks += [lambda: checkpoints.list_checkpoints(seen)] if "manifest" in name else []  # noqa: B023
            for look in looks:
                with pytest.raises(UserError) as raised:
                    look()
                assert is_loss(raised.value), raised.value
    assert "REFUSED" not in caplog.text
    assert checkpoints.newest_whole(model).step == 2
