import dataclasses
import os

import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table import changes
from ctr_trainer.embedding.table.row_form import DTYPES
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError

CONFIG = TableConfig("t", (2, 1), (0.1, 0.0), "adagrad", seed=5)


@pytest.fixture
def store():
    store = LocalStore()
    store.create_table(CONFIG)
    store.create_table(dataclasses.replace(CONFIG, name="empty"))
    store.sync("t", np.array([3, -4, 5]), np.ones((3, 6), np.float32), "w", 1)
    return store


def test_restore_brings_back_every_row_and_table(store, tmp_path):
    files = store.save(tmp_path / "made", 7)
    other = LocalStore()
    other.create_table(CONFIG)
    other.sync("t", np.array([99]), np.ones((1, 6), np.float32), "w", 1)
    other.restore(tmp_path / "made", files)
    assert other.tables["t"].keys.tolist() == [3, -4, 5]
    np.testing.assert_array_equal(other.tables["t"].stored, store.tables["t"].stored)
    assert other.tables["empty"].config.name == "empty"
    assert len(other.tables["empty"]) == 0


@pytest.mark.parametrize("asked", DTYPES)
@pytest.mark.parametrize("saved", DTYPES)
def test_rows_are_saved_in_their_form_and_restored_into_any(tmp_path, saved, asked):
    config = dataclasses.replace(CONFIG, dims=(8, 1), row_dtype=saved)
    store, other, keys = LocalStore(), LocalStore(), np.arange(1, 101)
    store.create_table(config)
    deltas = np.random.default_rng(0).normal(size=(100, 18)).astype(np.float32)
    store.sync("t", keys[:60], config.form.encode(deltas[:60]), "w", 1)
    files = store.save(tmp_path, 7)
    store.sync("t", keys[40:], config.form.encode(deltas[40:]), "w", 2)
    files += store.save(tmp_path, 8, files[-1]["snapshot"])
    other.create_table(dataclasses.replace(config, row_dtype=asked))
    other.restore(tmp_path, files)
    there, rows = store.tables["t"], other.tables["t"].take(other.tables["t"].find(keys))
    expected = other.config("t").form.decode(other.config("t").form.encode(there.take(there.find(keys))))
    np.testing.assert_array_equal(rows, expected)
    other.sync("t", keys[:1], other.config("t").form.encode(deltas[:1]), "w", 3)
    since = files[-1]["snapshot"]
    assert {each["since"] for each in other.save(tmp_path / "next", 9, since)} == {since if asked == saved else None}
    of_file = next(snapshot.batches(tmp_path, files[0])).column("row").type
    assert (of_file.list_size * 4 if saved == "float32" else of_file.byte_width) == 4 * config.form.lanes


@pytest.mark.parametrize("rows", [3, 200_000])  # At the end of the file, and before.
def test_a_full_disk_is_named_with_the_file_and_what_to_do_and_leaves_nothing(store, tmp_path, full_disk, rows):
    store.sync("t", np.arange(1, rows + 1), np.ones((rows, 6), np.float32), "w", 2)
    with pytest.raises(
        UserError, match=r"-00000-of-00001\.arrow: cannot be written: No space left on device; free some space"
    ):
        store.save(tmp_path, 7)
    assert os.listdir(tmp_path) == []


def test_files_are_plain_arrow_with_their_configuration(store, tmp_path):
    entry = {file["table"]: file for file in store.save(tmp_path, 7)}["t"]
    assert entry["file"] == "t-00000-of-00001.arrow"
    assert (entry["rows"], entry["bytes"]) == (3, (tmp_path / entry["file"]).stat().st_size)
    with pa.OSFile(str(tmp_path / entry["file"])) as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.column("key").to_pylist() == [3, -4, 5]
    assert table.schema.field("row").type.list_size == 6
    assert snapshot.config_from_json(table.schema.metadata[b"ctr_trainer.table"]) == CONFIG


def test_iterate_gives_the_rows_in_bounded_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "_BLOCK_BYTES", 640)  # 20 rows of 8 + 6 * 4 bytes.
    store = LocalStore()
    store.create_table(CONFIG)
    store.sync("t", np.arange(1, 51), np.zeros((50, 6), np.float32), "w", 1)
    blocks = list(snapshot.iterate(tmp_path, store.save(tmp_path, 1)))
    assert [len(keys) for _, keys, _ in blocks] == [0, 20, 20, 10]
    assert all(config == CONFIG for config, _, _ in blocks)
    np.testing.assert_array_equal(np.concatenate([rows for _, _, rows in blocks]), store.tables["t"].stored)


def _altered(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "truncated"),
        (_altered, "altered"),
        (lambda path: path.unlink(), "No such file"),
    ],
)
def test_a_damaged_file_is_refused_by_name_and_no_row_changes(store, tmp_path, damage, message):
    files = store.save(tmp_path, 7)
    damage(tmp_path / "t-00000-of-00001.arrow")
    before = store.tables["t"].stored.copy()
    with pytest.raises(UserError, match=f"t-00000-of-00001.arrow.*{message}"):
        store.restore(tmp_path, files)
    np.testing.assert_array_equal(store.tables["t"].stored, before)
    with pytest.raises(UserError, match="t-00000-of-00001.arrow"):
        list(snapshot.iterate(tmp_path, files))


def test_a_snapshot_unlike_its_manifest_is_refused(store, tmp_path):
    files = store.save(tmp_path, 7)
    with pytest.raises(UserError, match="3 rows, expected 4"):
        store.restore(tmp_path, [files[0], {**files[1], "rows": 4}])
    other = LocalStore()
    other.create_table(dataclasses.replace(CONFIG, seed=6))
    with pytest.raises(UserError, match="seed = 6, but its rows in .* were saved with 5"):
        other.restore(tmp_path, files)
    with pytest.raises(UserError, match="without a directory"):
        store.restore(tmp_path / "b", [{**files[0], "file": f"../{tmp_path.name}/{files[0]['file']}"}])


def test_a_directory_that_cannot_be_made_is_named(store, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="snapshot of step 7 in .*file"):
        store.save(tmp_path / "file", 7)


@pytest.mark.parametrize(
    "text", ["[]", "null", "{", '{"name": "t"}', '{"name": "t", "dims": ["a"], "init_scales": [0]}']
)
def test_a_configuration_that_is_none_is_refused(text):
    with pytest.raises(UserError, match="not a table's configuration"):
        snapshot.config_from_json(text)
