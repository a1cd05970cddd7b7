"""A full snapshot and the deltas after it are what a full snapshot at the end is."""

import dataclasses
import pathlib
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_trainer.embedding.index.key_kernels import shard_of
from ctr_trainer.embedding.snapshot import snapshot
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table import changes
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError

CONFIG = TableConfig("t", (2, 1), (0.1, 0.0), "adagrad", seed=5)
BOUNDED = dataclasses.replace(CONFIG, name="bounded", max_rows=8, eviction="lfu", ttl_steps=6)
SMALL = dataclasses.replace(CONFIG, name="small", dims=(6, 1), row_dtype="int8")
TABLES = (CONFIG, BOUNDED, SMALL)

_KEYS = st.lists(st.integers(1, 30), min_size=1, max_size=12, unique=True)
_CHANGES = st.one_of(
    st.tuples(st.just("sync"), _KEYS),
    st.tuples(st.just("train"), _KEYS),
    st.tuples(st.just("remove"), _KEYS),
    st.tuples(st.just("save"), st.booleans()),
)


def _rows(store):
    """Returns a dict of (table, key) -> row."""
    return {
        (name, key): row.tolist()
        for name, table in store.tables.items()
        for key, row in zip(table.keys.tolist(), table.config.form.decode(table.stored), strict=False)
        if key
    }


def _files_rows(path, files):
    return {
        (config.name, key): row.tolist()
        for config, keys, rows in snapshot.iterate(path, files)
        for key, row in zip(keys.tolist(), rows, strict=True)
    }


def _new_store():
    store = LocalStore()
    for config in TABLES:
        store.create_table(config)
    return store


class _Run:
    """A store, and the chain of what was saved of it."""

    def __init__(self, path):
        self.store, self.path = _new_store(), path
        self.files, self.step = [], 0

    def apply(self, change, argument):
        self.step += 1
        self.store.advance(self.step)
        if change == "save":
            self.save(full=argument)
            return
        keys = np.array(argument)
        for name, table in self.store.tables.items():
            if change == "sync":
                deltas = np.full((len(keys), table.config.width), self.step, np.float32)
                self.store.sync(name, keys, table.config.form.encode(deltas), "w", self.step)
            elif change == "train":
                gradients = [np.full((len(keys), dim), self.step, np.float32) for dim in table.config.dims]
                table.apply_gradients(table.find_or_create(keys), gradients, 0.1)
            else:
                table.remove(keys)

    def save(self, full=False):
        self.step += 1  # A checkpoint's step is its own.
        since = None if full or not self.files else self.files[-1]["snapshot"]
        files = self.store.save(self.path, self.step, since)
        self.files = files if files[0]["since"] is None else self.files + files


@settings(max_examples=40, deadline=None)
@given(st.lists(_CHANGES, min_size=1, max_size=25))
def test_base_and_deltas_equal_a_full_snapshot(run):
    with tempfile.TemporaryDirectory() as directory:
        made = _Run(pathlib.Path(directory) / "chain")
        for change in run:
            made.apply(*change)
        made.save()
        expected = _rows(made.store)
        full = made.store.save(pathlib.Path(directory) / "full", made.step)
        assert _files_rows(made.path, made.files) == _files_rows(pathlib.Path(directory) / "full", full) == expected

        restored = _new_store()
        restored.restore(made.path, made.files)
        assert _rows(restored) == expected
        one, two = (store.tables["bounded"] for store in (made.store, restored))
        keys = np.sort(one.keys[one.keys != 0])
        for a, b in zip(one.use_of(one.find(keys)), two.use_of(two.find(keys)), strict=True):
            np.testing.assert_array_equal(a, b)


@settings(max_examples=25, deadline=None)
@given(st.lists(_CHANGES, min_size=1, max_size=15), st.lists(_CHANGES, min_size=1, max_size=15))
def test_a_restored_store_goes_on_with_the_chain(before, after):
    with tempfile.TemporaryDirectory() as directory:
        made = _Run(pathlib.Path(directory))
        for change in before:
            made.apply(*change)
        made.save()
        other = _new_store()
        other.restore(made.path, made.files)
        made.store = other
        for change in after:
            made.apply(*change)
        made.save()
        assert _files_rows(made.path, made.files) == _rows(other)


def _pushed(keys, value=1.0, store=None, sequence=1):
    store = store or _new_store()
    store.sync("t", np.array(keys), np.full((len(keys), CONFIG.width), value, np.float32), "w", sequence)
    return store


def test_a_delta_has_the_changed_rows_and_the_removed_keys(tmp_path, monkeypatch):
    monkeypatch.setattr(changes, "_BLOCK_BYTES", 1)  # A block is one row.
    store = _pushed([1, 2, 3, 4])
    base = store.save(tmp_path, 10)
    _pushed([2, 7, 8], store=store, sequence=2)
    # 7 came and went between two snapshots, 8 came; 4 went and came back.
    store.tables["t"].remove(np.array([1, 3, 4, 7, 99]))
    _pushed([4], store=store, sequence=3)
    delta = [entry for entry in store.save(tmp_path, 20, base[-1]["snapshot"]) if entry["table"] == "t"]
    assert [(entry["file"], entry["kind"], entry["rows"]) for entry in delta] == [
        ("t-00000-of-00001.0000000020.delta.arrow", "delta", 3),
        ("t-00000-of-00001.0000000020.removed.arrow", "removed", 2),
    ]
    assert sorted(key for _, keys, _ in snapshot.read(tmp_path, delta[0]) for key in keys.tolist()) == [2, 4, 8]
    (removed,) = snapshot.batches(tmp_path, delta[1])
    assert removed.column("key").to_pylist() == [1, 3]


def test_by_key_the_order_of_creation_changes_no_byte_of_the_files(tmp_path):
    found, keys = [], np.random.default_rng(0).permutation(np.arange(-50_000, 50_000))
    for number, own in enumerate((keys[keys != 0], np.sort(keys[keys != 0])[::-1])):
        store = _pushed(own)
        store.tables["bounded"].find_or_create(own[own > 49_992])
        store.tables["t"].remove(np.arange(1, 100))
        files = store.begin_save(tmp_path / str(number), 1, by_key=True)()
        _pushed(own[np.abs(own) > 49_000], store=store, sequence=2)
        files += store.begin_save(tmp_path / str(number), 2, files[-1]["snapshot"], by_key=True)()
        assert _files_rows(tmp_path / str(number), files) == _rows(store)
        found.append(
            {each["file"]: (each["rows"], (tmp_path / str(number) / each["file"]).read_bytes()) for each in files}
        )
    assert found[0] == found[1] and len(found[0]) == 8


@pytest.mark.parametrize("by_key", [False, True])
def test_rows_that_change_while_they_are_saved_are_saved_as_they_were(tmp_path, monkeypatch, by_key):
    monkeypatch.setattr(changes, "_BLOCK_BYTES", 1)  # A block is one row.
    store = _pushed([1, 2, 3])
    before = _rows(store)
    read, blocks = changes.Capture.read, []

    def change_and_read(capture, table):
        # Between two blocks a change comes, a row goes, and another takes its slot.
        if capture.config.name == "t":
            blocks.append(capture)
            if len(blocks) == 2:
                table.find_or_insert(np.array([1, 3]), np.ones((2, CONFIG.width), np.float32))
                table.remove(np.array([2]))
                table.find_or_insert(np.array([9]), np.ones((1, CONFIG.width), np.float32))
                assert table.find(np.array([9])).tolist() == [1]
        return read(capture, table)

    monkeypatch.setattr(changes.Capture, "read", change_and_read)
    base = store.begin_save(tmp_path, 1, by_key=by_key)()
    assert _files_rows(tmp_path, base) == before
    delta = store.begin_save(tmp_path, 2, base[-1]["snapshot"], by_key)()
    assert _files_rows(tmp_path, base + delta) == _rows(store) != before


def test_a_save_that_is_given_up_is_in_no_chain_and_the_next_one_has_all_rows(tmp_path):
    store = _pushed([1, 2])
    base = store.save(tmp_path, 1)
    _pushed([3], store=store, sequence=2)
    saving = store.saving(tmp_path, 2, base[-1]["snapshot"])
    assert next(saving) == base[-1]["snapshot"]
    saving.close()
    again = store.save(tmp_path, 3, base[-1]["snapshot"])
    assert {entry["since"] for entry in again} == {None}
    assert _files_rows(tmp_path, again) == _rows(store)


def test_a_delta_of_another_snapshot_than_the_last_is_a_full_one(tmp_path):
    store = _pushed([1, 2])
    for each in [store.save(tmp_path / number, 1) for number in "12"]:
        assert {entry["since"] for entry in store.save(tmp_path / "3", 3, each[-1]["snapshot"])} == {None}


def test_a_chain_with_a_link_missing_or_out_of_order_is_refused(tmp_path):
    store = _pushed([1])
    chain = [store.save(tmp_path, 1)]
    for step in (2, 3):
        _pushed([step], store=store, sequence=step)
        chain.append(store.save(tmp_path, step, chain[-1][-1]["snapshot"]))
    for broken in (chain[0] + chain[2], chain[1] + chain[2], chain[0] + chain[2] + chain[1]):
        with pytest.raises(UserError, match="is a delta of"):
            store.restore(tmp_path, broken)
    assert len(store.tables["t"]) == 3


def test_shards_restore_a_chain_that_another_number_of_shards_saved(tmp_path):
    rng = np.random.default_rng(0)
    whole, shards, files = _new_store(), [_new_store(), _new_store()], []
    for step in range(1, 6):
        keys, gone = rng.choice(np.arange(1, 100), 30, replace=False), np.array([step, step + 50])
        deltas = rng.standard_normal((30, CONFIG.width)).astype(np.float32)
        for number, store in enumerate(shards):
            own = _owner(keys, 2) == number
            store.sync("t", keys[own], deltas[own], "w", step)
            store.tables["t"].remove(gone)
            store.take_place(number, 2)
            # As a client does: one identity for the files of all shards.
            files += [*store.saving(tmp_path, step, f"s{step - 1}" if step > 1 else None, f"s{step}")][-1]
        whole.sync("t", keys, deltas, "w", step)
        whole.tables["t"].remove(gone)
    restored = {}
    for number in range(3):
        store = _new_store()
        store.take_place(number, 3)
        store.restore(tmp_path, files)
        keys = store.tables["t"].keys
        assert (_owner(keys, 3) == number).all()
        restored.update(_rows(store))
    assert restored == _rows(whole)


def _owner(keys, shards):
    owner = np.empty(len(keys), np.int32)
    shard_of(keys, shards, owner)
    return owner
