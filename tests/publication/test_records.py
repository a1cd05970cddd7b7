"""The records of a publication, and what is removed of its directory."""

import dataclasses
import json

import pytest

from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.live.publication import records
from ctr_trainer.live.publication.records import Publication, Record
from ctr_trainer.system.files.paths import bytes_and_crc32, path_of
from ctr_trainer.system.messages.errors import UserError

CONFIG = TableConfig("dim2", (2, 1), (0.01, 0.0))


def _entry(directory, name, text):
    path = path_of(directory) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return dict(zip(("bytes", "crc32"), bytes_and_crc32(path), strict=True))


def _record(url, generation=3, epoch=2, kind="epoch"):
    directory = records.generation_path(url, generation)
    rows = f"{records.name_of(kind, epoch)}/dim2-00000-of-00001.rows.arrow"
    removed = f"{records.name_of(kind, epoch)}/dim2-00000-of-00001.removed.arrow"
    files = [
        dict(file=rows, table="dim2", kind="rows", rows=5, **_entry(directory, rows, "five rows")),
        dict(file=removed, table="dim2", kind="removed", rows=2, **_entry(directory, removed, "two keys")),
    ]
    dense = records.dense_name(1)
    tower = [dict(file="saved_model.pb", **_entry(directory / dense, "saved_model.pb", "tower"))]
    tables = json.loads(json.dumps([{"config": CONFIG.to_dict()}]))  # JSON has no tuples.
    return Record("deepfm", generation, epoch, kind, 100, 1.5, "float32", tables, files, dense, tower)


def test_a_record_is_read_as_written_and_its_checksum_covers_all_files(tmp_path):
    record = _record(tmp_path)
    records.write_record(tmp_path, record)
    read = records.read_record(tmp_path, 3, "epoch", 2)
    assert (read, read.rows, read.removed, read.configs()) == (record, 5, 2, {"dim2": CONFIG})
    records.check_files(tmp_path, read)
    other = dataclasses.replace(record, files=record.files[::-1])
    assert other.checksum != record.checksum


def test_records_are_listed_in_the_order_in_which_a_state_is_made(tmp_path):
    for kind, epoch in (("epoch", 1), ("base", 0), ("epoch", 3), ("base", 2), ("epoch", 2)):
        records.write_record(tmp_path, _record(tmp_path, epoch=epoch, kind=kind))
    names = records.list_records(tmp_path, 3)
    assert names == [("base", 0), ("epoch", 1), ("epoch", 2), ("base", 2), ("epoch", 3)]
    assert records.newest_base(names) == 2
    assert (records.list_records(tmp_path, 4), records.newest_base([])) == ([], None)


def test_the_current_generation_is_read_as_it_was_written(tmp_path):
    url = tmp_path / "new"
    assert records.read_publication(url) is None
    for generation in (1, 2):
        records.write_publication(url, Publication("deepfm", generation, "a"))
    assert records.read_publication(url) == Publication("deepfm", 2, "a")


@pytest.mark.parametrize("name", ["epoch-0000000002/dim2-00000-of-00001.rows.arrow", "dense-0000000001/saved_model.pb"])
def test_a_file_that_was_altered_or_is_missing_is_named(tmp_path, name):
    record = _record(tmp_path)
    file = records.generation_path(tmp_path, 3) / name
    file.write_text("another")
    with pytest.raises(UserError, match=name):
        records.check_files(tmp_path, record)
    file.unlink()
    with pytest.raises(UserError, match=f"{name}: No such file"):
        records.check_files(tmp_path, record)


def test_an_altered_record_is_refused(tmp_path):
    records.write_record(tmp_path, _record(tmp_path))
    path = records.generation_path(tmp_path, 3) / "epoch-0000000002.json"
    values = json.loads(path.read_text())
    for change, said in (
        ({"format": 2}, "format 2"),
        ({"checksum": 1}, "altered"),
        ({"rows": 1}, "altered"),
        ({"epoch": 3}, "is the record of generation 3, epoch 3"),
        ({"files": None}, "is not a record"),
        ({"tables": [{"config": {}}]}, "is not a record"),
        ({"colour": "red"}, "is not a record"),
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
    assert records.newest_generation(tmp_path) == 3
    records.remove_generations_before(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[1:])
