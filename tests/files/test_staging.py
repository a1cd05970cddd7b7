"""The local directory of a job whose directory is in a store, which is moto's server."""

import os

import numpy as np
import pytest

from ctr_trainer.embedding.table.cold_rows import ColdRows, disk_of
from ctr_trainer.settings.embedding_config import DiskSettings
from ctr_trainer.system.files.staging import local_directory, make_local_directory, staged
from ctr_trainer.system.messages.errors import UserError
from tests import object_store

URL = f"s3://{object_store.BUCKET}/job"


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_what_is_appended_to_is_copied_and_gone_on_with(store, temporary):
    store.put("job/metrics.jsonl", b"1\n")
    store.put("job/features.json", b"{}")
    left = os.path.join(make_local_directory(URL), ".ranks", "3")
    os.makedirs(os.path.dirname(left))
    open(left, "w").close()
    with staged(URL, fetches=True, owns=True) as staging:
        assert staging.path == local_directory(URL) and not os.path.exists(left)
        with open(os.path.join(staging.path, "metrics.jsonl"), "a") as file:
            file.write("2\n")
        staging.upload()
        assert store.get("job/metrics.jsonl") == b"1\n2\n"
        store.put("job/metrics.jsonl", b"")
        staging.upload()  # It has not changed since.
        assert store.get("job/metrics.jsonl") == b""
        os.makedirs(os.path.join(staging.path, "eval"))
        for name in ("eval/events", ".ranks/0"):
            with open(os.path.join(staging.path, name), "w") as file:
                file.write("x")
    assert store.keys("job") == ["job/eval/events", "job/features.json", "job/metrics.jsonl"]
    assert os.listdir(temporary) == []


def test_rows_on_disk_are_no_files_of_the_job(store, temporary):
    pytest.importorskip("rocksdict", reason="rows on disk need the extra `disk`")
    url, keys = f"{URL}-of-rows", np.arange(9)
    with staged(url, fetches=False, owns=True) as staging:
        rows = ColdRows(disk_of(DiskSettings(table_memory="1MiB"), url), 8)
        rows.write(keys, np.zeros((9, 8), np.uint8), np.zeros((2, 9), np.uint32))
        with rows.linked():
            staging.upload()
    assert store.keys("job-of-rows") == [] and len(rows.read(keys)[0]) == 9
    rows.close()
    assert os.listdir(temporary) == []


def test_files_that_the_store_does_not_take_are_kept(store, temporary, monkeypatch, caplog):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    url = "s3://none/job"  # There is no such bucket.
    with staged(url, fetches=False, owns=True) as staging:
        with open(os.path.join(staging.path, "events"), "w") as file:
            file.write("x")
        with pytest.raises(UserError, match="s3://none/job/events: cannot be written"):
            staging.upload()
    assert "the files are kept in" in caplog.text and os.listdir(staging.path) == ["events"]


def test_a_local_directory_is_its_own(tmp_path):
    with staged(tmp_path, fetches=True, owns=True) as staging:
        (tmp_path / "x").touch()
        staging.upload()
    assert staging.path == str(tmp_path) == local_directory(tmp_path) and os.listdir(tmp_path) == ["x"]
