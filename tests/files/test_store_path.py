"""Paths in a store: what they list, read and write, and what their errors say. The store is moto's server."""

import dataclasses
import errno
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ctr_trainer.data.source import list_files
from ctr_trainer.export import directory
from ctr_trainer.system.files import lease
from ctr_trainer.system.files.lease import Lease, Owner, StorePlace
from ctr_trainer.system.files.outputs import FileList, refuse_overlap
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError
from tests import object_store
from tests.files.failing_proxy import FailingProxy


@pytest.mark.parametrize(
    ("named", "text", "name"),
    [
        ("s3://b/a/c.parquet", "s3://b/a/c.parquet", "c.parquet"),
        ("s3://b/a//c/", "s3://b/a/c", "c"),
        ("s3://b", "s3://b", ""),
        ("s3://b/day_?.csv?region=eu-central-1", "s3://b/day_?.csv?region=eu-central-1", "day_?.csv"),
        ("s3://b/x?endpoint_override=http://h:1&scheme=http", "s3://b/x?endpoint_override=http://h:1&scheme=http", "x"),
        ("file:///a%20b/c", "/a b/c", "c"),
        ("a/b", "a/b", "b"),
    ],
)
def test_a_path_is_written_as_it_was_named(named, text, name):
    assert str(path_of(named)) == text and path_of(named).name == name


def test_a_path_is_joined_before_the_options_of_its_connection():
    path = path_of("s3://b/models?region=us-west-2")
    assert str(path / "step-1" / "manifest.json") == "s3://b/models/step-1/manifest.json?region=us-west-2"
    assert (path / "x").parent == path and (path / "x").is_relative_to(path) and not path.is_relative_to(path / "x")
    assert str(path / "../../../etc") == "s3://b/etc?region=us-west-2"
    assert path / path_of("s3://b/x") == path_of("a") / path_of("s3://b/x") == path_of("s3://b/x")


def test_remote_files_are_listed_as_local_ones_and_a_missing_one_is_named(store, tmp_path):
    names = [
        "logs/day=2/part-0.csv", "logs/day=1/part-1.csv", "logs/day=1/part-0.csv", "logs/day=1-b/part-0.csv",
        "logs/_SUCCESS", "logs/.hidden/x.csv", "logs/day=1/_temporary/x.csv", "logs2/x.csv",
    ]  # fmt: skip
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        store.put(name, b"x")
    for source in "logs logs/ logs/day=* logs/day=*/ logs/day=[12]/*.csv logs* logs/day=1/part-0.csv".split():
        local = [(os.path.relpath(file.path, tmp_path), file.partitions) for file in list_files(f"{tmp_path}/{source}")]
        remote = list_files(f"s3://{object_store.BUCKET}/{source}")
        assert [(file.path.removeprefix(f"s3://{object_store.BUCKET}/"), file.partitions) for file in remote] == local
    with pytest.raises(UserError, match="s3://tests/none.txt: cannot be read: there is no such file"):
        path_of("s3://tests/none.txt").read_bytes()
    with pytest.raises(UserError, match="input s3://tests/none/\\*: no such file or directory, and none matches it"):
        list_files("s3://tests/none/*")


def test_a_row_group_is_read_without_the_rest_of_the_file(store, tmp_path):
    values = np.random.default_rng(1).random(400_000)
    pq.write_table(pa.table({"a": values, "b": values}), tmp_path / "x.parquet", row_group_size=50_000)
    url = store.put("range/x.parquet", tmp_path / "x.parquet")
    with FailingProxy(store.host_port) as proxy:
        with path_of(f"{url}?endpoint_override={proxy.address}&scheme=http").open_parquet() as file:
            table = file.read_row_group(3, columns=["b"])
    assert table["b"].to_numpy().tolist() == values[150_000:200_000].tolist()
    assert proxy.sent_bytes < (tmp_path / "x.parquet").stat().st_size / 4


def test_requests_that_fail_are_tried_again(store):
    url = store.put("retry/x.txt", b"text")
    path = path_of(url)
    for use in (lambda path: path.read_bytes(), lambda path: path.write_text("more")):
        with FailingProxy(store.host_port, failures=3) as proxy:
            found = use(path_of(f"{url}?endpoint_override={proxy.address}&scheme=http"))
            assert proxy.failed == 3 and found in (b"text", None)
    assert path.read_bytes() == b"more"


def test_a_corrected_endpoint_counts_at_once(store, monkeypatch):
    url = store.put("corrected/x.txt", b"text")
    with monkeypatch.context() as patch, pytest.raises(UserError, match="check that the credentials"):
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        patch.setenv("AWS_MAX_ATTEMPTS", "1")
        path_of(url).exists()
    assert path_of(url).read_bytes() == b"text"


def test_a_store_that_does_not_answer_is_named_with_what_to_look_at(monkeypatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    url = "s3://tests/x?endpoint_override=127.0.0.1:1&scheme=http"
    with pytest.raises(UserError, match=r"^s3://tests/x\?.*: cannot be looked at: .*; check that the credentials "):
        path_of(url).exists()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://key:hush@b/x", "s3://...@b: a password in a URL would appear in logs"),
        ("s3://b/x?access_key=a&secret_key=hush", r"s3://b\?\.\.\.: a password in a URL would appear in logs"),
        ("abfs://c@account/x?sv=1&sig=hush", "a password in a URL would appear in logs"),
        ("s3://b/x?proxy_options=http%3A%2F%2Fme%3Ahush%40proxy%3A1", "a password in a URL would appear in logs"),
        ("ftp://b/x", "ftp://b: cannot be opened: .*; .* URLs are opened by pyarrow.fs: s3://, gs://, hdfs://"),
        ("s3://b/x?region=r&color=red", "s3://b.region=r&color=red: cannot be opened: .*color"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url, message):
    with pytest.raises(UserError, match=message) as raised:
        path_of(url).exists()
    assert "hush" not in str(raised.value)


def test_a_file_is_there_when_it_is_whole(store):
    path = path_of("s3://tests/whole/x.bin")
    with path.writing() as file:
        file.write(b"1" * 100)
        assert not path.exists()
    assert path.size() == 100
    with pytest.raises(ZeroDivisionError), path_of("s3://tests/whole/y.bin").writing() as file:
        file.write(b"1")
        raise ZeroDivisionError
    assert store.keys("whole") == ["whole/x.bin"]
    (path.parent / "z.bin").copy_from(path)
    assert (path.parent / "z.bin").size() == 100
    path.unlink()
    path.unlink(missing_ok=True)
    assert path.parent.files() == ["z.bin"]


def test_a_list_of_files_knows_its_own_in_a_store(store):
    store.put("listed/mine.txt", b"")
    files = FileList("s3://tests/listed", ".list")
    files.add("a.txt").write_text("a")
    files.add("b/c.txt").write_text("c")
    again = FileList("s3://tests/listed", ".list")
    assert again.names == {"a.txt", "b/c.txt"} and again.others() == ["mine.txt"]
    again.discard()
    assert store.keys("listed") == ["listed/mine.txt"]


def test_an_output_does_not_overlap_its_inputs(store):
    store.put("overlap/in/x.csv", b"x")
    url = "s3://tests/overlap"
    for output, source in ((url, f"{url}/in/x.csv"), (f"{url}/in/out", f"{url}/in"), (f"{url}/z.csv", f"{url}/*.csv")):
        with pytest.raises(UserError, match=f"^output {output}: "):
            refuse_overlap(output, [source], [source])
    refuse_overlap(f"{url}/out", [f"{url}/in"], [f"{url}/in/x.csv"])
    refuse_overlap("out", [f"{url}/in"], [f"{url}/in/x.csv"])
    refuse_overlap(f"{url}/out", ["."], ["x.csv"])


HOLDER = """
import sys
from ctr_trainer.system.files.paths import path_of
lock = path_of(sys.argv[1]).hold(str)
print("held", flush=True)
sys.stdin.read()
"""


def test_a_lock_is_held_by_one_process_and_ends_with_it(store):
    url, environment = "s3://tests/lock/x", {**os.environ, **store.environment}
    command = [sys.executable, "-c", HOLDER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as other:
        assert other.stdout.readline() == "held\n"
        path = path_of(url)
        with pytest.raises(UserError, match=f"process {other.pid} on host .* since"):
            path.hold(lambda holder: holder)
        other.kill()
    lock = path.hold(lambda holder: holder)
    lock.check()
    lock.close()
    assert store.keys("lock") == []


def test_a_lock_of_another_machine_is_waited_for_and_one_that_was_lost_is_said(store):
    path = path_of("s3://tests/lock/y")
    path.write_json({"token": "other", "process": 1, "host": "away", "machine": "another", "since": "then"})
    lock = Lease(StorePlace(path, str), seconds=2.0)  # Which is not renewed.
    path.write_json({"token": "third", "process": 2, "host": "away", "machine": "another", "since": "now"})
    lock._thread.join(60)
    with pytest.raises(UserError, match="process 2 on host away since now has taken the lock"):
        lock.check()
    lock.close()
    assert path.read_json("")["token"] == "third"


class _Unreadable:
    """The path of a lock that is there but cannot be read."""

    def is_file(self):
        return True

    def read_bytes(self):
        raise UserError("no answer")


def test_a_lock_that_cannot_be_read_is_not_lost():
    with pytest.raises(UserError, match="no answer"):
        StorePlace(_Unreadable(), str).renew(Owner.new(), 1)


def test_an_owner_has_ended_only_if_it_is_known_to_be_of_this_machine(monkeypatch):
    ended = dataclasses.replace(Owner.new(), process=2**30)
    assert ended.has_ended() and not Owner.new().has_ended()
    assert not dataclasses.replace(ended, machine="another").has_ended()
    monkeypatch.setattr(lease.hardware, "machine_id", lambda namespace: "")
    assert not dataclasses.replace(ended, machine="").has_ended()


def test_a_process_that_cannot_be_looked_at_is_not_taken_for_an_ended_one(monkeypatch):
    def refuse(*_):
        raise OSError(errno.EMFILE, "too many open files")

    owner = Owner.new()
    monkeypatch.setattr(lease.hardware, "machine_id", lambda namespace: owner.machine)
    monkeypatch.setattr(lease.pathlib.Path, "read_bytes", refuse)
    assert not owner.has_ended()


def test_an_export_in_a_store_replaces_an_earlier_one_and_no_other_file(store):
    url = "s3://tests/served/1"
    for names in (("saved_model.pb", "variables/a", "variables/b"), ("saved_model.pb", "variables/a")):
        with directory.replacing(url) as draft:
            for name in names:
                os.makedirs(os.path.dirname(os.path.join(draft, name)), exist_ok=True)
                with open(os.path.join(draft, name), "w") as file:
                    file.write(name)
        own = "assets.extra/ctr_trainer_files"
        assert store.keys("served") == sorted(f"served/1/{name}" for name in (own, *names))
    store.put("served/1/mine.txt", b"")
    with pytest.raises(UserError, match=f"^{url} holds files that `export` did not write .mine.txt."):
        directory.refuse_others(url)
    with pytest.raises(UserError, match=f"name a version that does not exist yet: export_dir={url[:-2]}/2"):
        directory.refuse_others(url[:-2])
