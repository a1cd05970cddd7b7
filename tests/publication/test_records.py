"""The records of a publication, and what is removed of its directory."""

import json
import threading

import pytest

from ctr_trainer.live.publication import records
from ctr_trainer.system.files.paths import path_of
from ctr_trainer.system.messages.errors import UserError
from tests.publication.published import CONFIG, Published


def _published(url):
    published = Published(url, generation=3)
    published.epoch([1])
    published.epoch([1, 2, 3], [4, 5])
    return published


def test_records_are_read_as_written_in_the_order_in_which_a_state_is_made(tmp_path):
    published = _published(tmp_path)
    record = records.read_record(tmp_path, 3, "epoch", 2)
    assert (record, record.rows, record.removed, record.configs()) == (published.record, 3, 2, {"dim3": CONFIG})
    published.base()
    published.epoch([1])
    names = records.list_records(tmp_path, 3)
    assert names == [("base", 0), ("epoch", 1), ("epoch", 2), ("base", 2), ("epoch", 3)]
    assert records.newest_base(names) == 2
    assert (records.list_records(tmp_path, 4), records.newest_base([])) == ([], None)


@pytest.mark.parametrize("name", ["epoch-0000000002/dim3-00000-of-00001.rows.arrow", "dense-0000000002/saved_model.pb"])
def test_a_file_that_was_altered_or_is_missing_is_named(tmp_path, name):
    record = _published(tmp_path).record
    file = records.generation_path(tmp_path, 3) / name
    file.write_text("another")
    with pytest.raises(UserError, match=f"{name}.*altered"):
        records.check_files(tmp_path, record)
    file.unlink()
    with pytest.raises(UserError, match=f"{name}: No such file"):
        records.check_files(tmp_path, record)


def test_a_look_that_the_file_system_refuses_finds_no_record(tmp_path):
    too_long = path_of(tmp_path / ("x" * 300))
    assert not records.await_record(too_long, 0.0, threading.Event())


def test_an_altered_record_is_refused(tmp_path):
    _published(tmp_path)
    path = records.generation_path(tmp_path, 3) / "epoch-0000000002.json"
    values = json.loads(path.read_text())
    for change, said in (
        ({"files": None}, "is not a record"),
        ({"tables": [{"config": {}}]}, "is not a record"),
        ({"colour": "red"}, "is not a record"),
        ({"files": [values["files"][0] | {"file": "../x"}]}, "'../x' is outside of its directory"),
        ({"dense_files": [{"file": "/x", "bytes": 1, "crc32": 1}]}, "'/x' is outside of its directory"),
    ):
        path.write_text(json.dumps(values | change))
        with pytest.raises(UserError, match=said):
            records.read_record(tmp_path, 3, "epoch", 2)
    path.write_text(json.dumps(values)[:-20])
    with pytest.raises(UserError, match="cut off"):
        records.read_record(tmp_path, 3, "epoch", 2)


def test_only_directories_of_generations_are_counted_and_removed(tmp_path):
    names = ["generation-0000000001", "generation-0000000003", "generation-2", "generation-old", "mine"]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert (records.next_generation(tmp_path), records.find_current(tmp_path)) == (4, (0, []))
    (tmp_path / names[0] / "base-0000000000.json").touch()
    assert records.find_current(tmp_path) == (1, [("base", 0)])
    records.remove_generations_before(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
