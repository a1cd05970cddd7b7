"""A table whose rows lie on disk, except those that fit into its memory, against a table in memory."""

import dataclasses
import os
import shutil
import threading

import numpy as np
import pytest

from ctr_trainer.embedding.index.key_kernels import owned
from ctr_trainer.embedding.snapshot import packed_rows, snapshot
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.versions import ABSENT
from ctr_trainer.embedding.store.worker_rows import TableRows
from ctr_trainer.embedding.table import rocks
from ctr_trainer.embedding.table.cold_rows import STATS, ColdRows, Disk, status_line
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.estimator.row_gradients import RowGradients, TableGradients
from ctr_trainer.system.files.local_path import LocalPath
from ctr_trainer.system.messages.errors import UserError

pytest.importorskip("rocksdict", reason="rows on disk need the extra `disk`")
CONFIG = TableConfig("dim2", (2, 1), (0.5, 0.0), "adagrad", seed=3)
ROWS = 5000
MEMORY = 500 * (4 * CONFIG.width + 32)  # Of 500 rows.


def make(directory=None, config=CONFIG, memory=MEMORY):
    store = LocalStore(disk=directory and Disk(str(directory), memory))
    store.create_table(config)
    return store


def step(store, rng, size=200):
    """Trains a batch of keys, of which low ones are more frequent."""
    table = store.tables[CONFIG.name]
    keys = np.unique((ROWS * rng.random(size) ** 3).astype(np.int64) + 1)
    table.fetch(keys)
    gradients = [rng.standard_normal((len(keys), dim)).astype(np.float32) for dim in table.config.dims]
    with table.lock.alone():
        table.apply_gradients(table.find_or_create(keys), gradients, 0.1)


def rows_of(store, keys=None):
    keys = np.arange(ROWS + 10) if keys is None else keys
    table = store.tables[CONFIG.name]
    return table.take(table.find(keys))


def test_reads_of_earlier_lookups_make_no_share_in_memory_negative():
    before = dict.fromkeys(STATS, 0)
    now = {**before, "rows": 10, "looked_up": 100, "disk_reads": 150, "disk_found": 140}
    assert "in memory: 0.0%  reads: 150  found: 140" in status_line("dim2", now, before)


def saved(directory, files):
    """Returns dict of key -> bytes of the row of a snapshot."""
    return {
        key: row.tobytes()
        for _, keys, rows in snapshot.iterate(str(directory), files)
        for key, row in zip(keys.tolist(), rows, strict=True)
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_rows_train_on_disk_to_the_bit_as_in_memory(tmp_path, dtype):
    config = dataclasses.replace(CONFIG, dims=(16, 1), row_dtype=dtype)
    memory = 500 * (config.form.nbytes + 32)
    stores = make(None, config), make(tmp_path / "disk", config, memory)
    for store in stores:
        rng = np.random.default_rng(1)
        for _ in range(150):
            step(store, rng)
    memory, disk = (store.tables[CONFIG.name] for store in stores)
    assert len(disk) == len(memory) > 2000
    assert len(disk.keys) - (disk.keys == 0).sum() <= 500
    assert disk.stats()["created"] == memory.stats()["created"] == len(memory)
    np.testing.assert_array_equal(rows_of(stores[1]), rows_of(stores[0]))
    stores[1].close()
    assert os.listdir(tmp_path / "disk") == []


def test_a_chain_of_snapshots_has_the_rows_on_disk_and_is_restored(tmp_path):
    stores = make(), make(tmp_path / "disk")
    chains = [], []
    for number in range(4):
        for store, chain, name in zip(stores, chains, ("memory", "cold"), strict=True):
            rng = np.random.default_rng(number)
            for _ in range(40):
                step(store, rng)
            since = chain[-1]["snapshot"] if chain else None
            chain[:] = [each for each in chain if each["kind"] != snapshot.COLD]
            chain += store.save(tmp_path / name, number, since=since)
    expected, found = saved(tmp_path / "memory", chains[0]), saved(tmp_path / "cold", chains[1])
    assert expected == found
    for directory, memory in (("again", MEMORY), ("smaller", MEMORY // 3), (None, 0)):
        again = make(directory and tmp_path / directory, memory=memory)
        again.restore(tmp_path / "cold", chains[1])
        assert len(again.tables[CONFIG.name]) == len(expected)
        for store in (again, stores[0]):
            rng = np.random.default_rng(9)
            for _ in range(20):
                step(store, rng)
        np.testing.assert_array_equal(rows_of(again), rows_of(stores[0]))
        place = shutil.copytree(tmp_path / "cold", tmp_path / f"{directory} saved")
        files = again.save(place, 9, since=chains[1][-1]["snapshot"])
        files = snapshot.rows_files(chains[1] if files[0]["since"] else []) + files
        assert saved(place, files) == saved(tmp_path / "full", stores[0].save(tmp_path / "full", 9))
        stores[0].restore(tmp_path / "memory", chains[0])
        again.close()


def test_a_restored_database_has_the_options_of_a_new_one(tmp_path):
    store = make(tmp_path / "disk")
    files = store.save(tmp_path / "saved", 1)
    store.restore(tmp_path / "saved", files)
    log = (next((tmp_path / "disk").iterdir()) / "rows" / "LOG").read_text()
    assert "filter_policy: bloomfilter" in log  # Without filters, each file costs a read for each key.
    assert "filter_policy: nullptr" not in log
    store.close()


def test_a_restore_may_be_watched(tmp_path, monkeypatch):
    store, rng, share, seen = make(tmp_path / "disk"), np.random.default_rng(1), LocalPath.share, []
    for _ in range(20):
        step(store, rng)
    files = store.save(tmp_path / "saved", 1)
    before = store.stats()["tables"][CONFIG.name]
    monkeypatch.setattr(LocalPath, "share", lambda *paths: seen.append(store.stats()) or share(*paths))
    store.restore(tmp_path / "saved", files)
    assert {each["tables"][CONFIG.name]["disk_bytes"] for each in seen} == {0}
    after = store.stats()["tables"][CONFIG.name]
    assert after["rows"] == before["rows"] and after["disk_bytes"] > 0  # RocksDB may have merged files since.


def test_a_snapshot_reads_no_row_on_disk_and_tells_its_files_apart(tmp_path, monkeypatch):
    stores, read, blocks = [make(tmp_path / "one"), make(tmp_path / "two")], [], LocalPath.blocks
    monkeypatch.setattr(LocalPath, "blocks", lambda path, size: read.append(path.name) or blocks(path, size))
    cold = []
    for number, store in enumerate(stores):  # With equal rows.
        rng = np.random.default_rng(1)
        for _ in range(20):
            step(store, rng)
        cold += [each for each in store.save(tmp_path / f"saved {number}", 1) if each["file"].endswith(rocks.ROWS_FILE)]
        store.close()
    assert len(cold) > 2 and len({each["crc32"] for each in cold}) == len(cold)
    assert read and not [name for name in read if name.endswith(rocks.ROWS_FILE)]


@pytest.mark.parametrize("shards", [2, 3])
def test_shards_link_their_own_rows_or_read_those_of_other_shards(tmp_path, shards):
    def stores(number):
        made = [make(tmp_path / f"disk{shard}") for shard in range(number)]
        for shard, store in enumerate(made):
            store.take_place(shard, number)
        return made

    def save(made, since=None):
        """Returns the files of all shards, in one directory."""
        place = tmp_path / "saved"
        return [file for each in made for file in list(each.saving(place, 1, since, str(since)))[-1]]

    two, keys = stores(2), np.arange(1, ROWS + 1)
    for shard, store in enumerate(two):
        store.sync(
            CONFIG.name, own := keys[owned(keys, shard, 2)], np.ones((len(own), CONFIG.width), np.float32), "w", 0
        )
    expected = saved(tmp_path / "saved", files := save(two))
    again = stores(shards)
    for store in again:
        store.restore(tmp_path / "saved", files)
        assert store.tables[CONFIG.name].cold.reads == 0
    assert len(expected) == sum(len(store.tables[CONFIG.name]) for store in again) == ROWS
    new = save(again, files[-1]["snapshot"])
    assert saved(tmp_path / "saved", (snapshot.rows_files(files) if new[0]["since"] else []) + new) == expected
    assert bool(new[0]["since"]) == (shards == 2)


def test_a_removed_row_does_not_come_back(tmp_path):
    store = make(tmp_path / "disk")
    rng = np.random.default_rng(1)
    for _ in range(100):
        step(store, rng)
    table = store.tables[CONFIG.name]
    everywhere = np.arange(1, ROWS + 1)
    with table.lock.alone():
        before = len(table)
        hot = np.unique(table.keys)[1:][:100]
        cold = everywhere[(table.find_in_memory(everywhere) < 0) & rows_of_disk(table, everywhere)][:100]
        table.find(cold[:50])  # These are in memory, and out of date on disk.
        assert table.remove(np.concatenate([hot, cold])) == 200
        assert len(table) == before - 200
    gone = saved(tmp_path / "s", store.save(tmp_path / "s", 1)).keys() & set(np.concatenate([hot, cold]).tolist())
    assert not gone
    np.testing.assert_array_equal(rows_of(store, cold), 0)


def rows_of_disk(table, keys):
    here = np.zeros(len(keys), bool)
    here[table.cold.read(keys)[0]] = True
    return here


@pytest.mark.parametrize("ttl_steps", [0, 5])
def test_a_pull_that_repeats_keys_counts_each_row_on_disk_once(tmp_path, ttl_steps):
    store, rng = make(tmp_path / "disk", dataclasses.replace(CONFIG, ttl_steps=ttl_steps)), np.random.default_rng(0)
    store.advance(1)
    for _ in range(40):
        step(store, rng)
    table = store.tables[CONFIG.name]
    keys = np.arange(1, ROWS)
    on_disk = keys[(table.find_in_memory(keys) < 0) & rows_of_disk(table, keys)][:50]
    table.advance(10)  # Of rows that expire, only those that are pulled are evicted.
    before = len(table)
    found = store.pull(CONFIG.name, np.repeat(on_disk, 3), np.full(150, ABSENT, np.uint32))
    assert len(found.positions) == (0 if ttl_steps else 150)
    assert len(table) == before - (50 if ttl_steps else 0)
    assert table.counters.evicted == before - len(table)
    assert len(saved(tmp_path / "saved", store.save(tmp_path / "saved", 1))) == len(table)
    store.close()


def test_rows_fetched_while_they_are_written_are_read_again(tmp_path):
    """A thread fetches all keys all the time, while another one trains rows, which go to disk and return."""
    stores, ends = (make(), make(tmp_path / "disk", memory=MEMORY // 5)), threading.Event()
    table = stores[1].tables[CONFIG.name]

    def fetch():
        while not ends.is_set():
            table.fetch(np.arange(1, ROWS))

    thread = threading.Thread(target=fetch)
    thread.start()
    for store in stores[::-1]:
        rng = np.random.default_rng(1)
        for _ in range(300):
            step(store, rng, 40)
    ends.set()
    thread.join()
    np.testing.assert_array_equal(rows_of(stores[1]), rows_of(stores[0]))


def published(directory, files):
    """Returns (the weights by key, the removed keys) of an epoch."""
    rows, removed = {}, set()
    for entry in files:
        path = directory / entry["file"]
        if entry["kind"] == "rows":
            for keys, values in packed_rows.read_rows(path, CONFIG, "float32"):
                assert not rows.keys() & set(keys.tolist())
                rows |= dict(
                    zip(keys.tolist(), map(bytes, packed_rows.unpack(values, CONFIG, "float32")[0]), strict=True)
                )
        else:
            removed |= {key for keys in packed_rows.read_removed(path, CONFIG, "float32") for key in keys.tolist()}
    return rows, removed


def test_a_snapshot_without_its_links_keeps_no_changed_row(tmp_path, monkeypatch):
    store, rng = make(tmp_path / "disk"), np.random.default_rng(0)
    step(store, rng)

    def full(self):
        raise UserError("the disk is full")

    monkeypatch.setattr(ColdRows, "linked", full)
    with pytest.raises(UserError, match="the disk is full"):
        store.save(tmp_path / "one", 1)
    changes = store.tables[CONFIG.name].changes
    assert changes is not None and changes._capture is None


def test_a_run_may_begin_to_expire_rows_that_an_earlier_one_wrote_to_disk(tmp_path):
    store, step = make(tmp_path / "disk"), 9000
    rows = TableRows(store.tables[CONFIG.name])
    for first in range(1, 2001, 10):  # Each row is trained in one of the last 200 steps.
        keys = np.arange(first, first + 10)
        sums = [np.ones((10, dim), np.float32) for dim in CONFIG.dims]
        rows.apply_gradients(keys, rows.find_or_create(keys), sums, 0.1)
        step += 1
        store.advance(step)
    files = store.save(tmp_path / "saved", step)
    store.close()
    store = make(tmp_path / "disk", dataclasses.replace(CONFIG, ttl_steps=5000))
    store.restore(tmp_path / "saved", files)
    for later in range(1, 100):
        store.advance(step + later)
    assert (store.tables[CONFIG.name].find(np.arange(1, 2001)) >= 0).all()


def test_l2_of_two_micro_batches_is_of_their_own_rows(tmp_path):
    found = []
    for directory in (tmp_path, None):
        store, gradients = make(directory, memory=MEMORY // 5), RowGradients(1.0, l2=0.5)
        rows = TableRows(store.tables[CONFIG.name])
        for first in (1, 81):
            keys = np.arange(first, first + 80)
            rows.fetch(keys)
            sums = [np.zeros((len(keys), dim), np.float32) for dim in CONFIG.dims]
            gradients.add([TableGradients(rows, keys, rows.find_or_create(keys), sums)])
        for part in gradients.take(1.0):
            part.rows.apply_gradients(part.keys, part.slots, part.sums, 0.1)
        found.append(rows_of(store, np.arange(1, 161)))
    np.testing.assert_array_equal(*found)


def test_epochs_have_the_changed_rows_that_went_to_disk(tmp_path):
    """The second epoch is not published, so the third one repeats it; a removed key is on disk."""
    stores, seen = (make(), make(tmp_path / "disk")), ({}, {})
    for epoch, after in ((1, None), (2, 1), (3, 1), (4, 3)):
        for number, (store, rows) in enumerate(zip(stores, seen, strict=True)):
            rng = np.random.default_rng(epoch)
            for _ in range(40):
                step(store, rng)
            if epoch == 3:
                with store.tables[CONFIG.name].lock.alone():
                    store.tables[CONFIG.name].remove(np.arange(1, ROWS, 7))
            directory = tmp_path / f"{number}-{epoch}"
            new, removed = published(directory, store.publish(directory, epoch, "float32", after))
            if epoch != 2:
                assert not new.keys() & removed
                rows.update(new)
                for key in removed:
                    rows.pop(key, None)
        assert seen[0] == seen[1]
    assert len(seen[0]) == len(stores[0].tables[CONFIG.name])


def test_an_epoch_has_the_rows_that_return_from_disk_while_it_is_written(tmp_path, monkeypatch):
    stores, keys, returned, read = (make(), make(tmp_path / "disk")), np.arange(1, 2001), [], Table.read_cold

    def read_later(table, *epoch):
        if table.cold:
            with table.lock.alone():
                table.most_in_memory += 100  # No row leaves for those that return.
                returned[:] = keys[table.find_in_memory(keys) < 0][:100]
                table.find(np.array(returned))
        yield from read(table, *epoch)

    monkeypatch.setattr(Table, "read_cold", read_later)
    for epoch, after in ((1, None), (2, 1)):
        found = []
        for number, store in enumerate(stores):
            for first in range(0, 2000, 100):
                changes = np.full((100, CONFIG.width), epoch, np.float32)
                store.sync(CONFIG.name, keys[first : first + 100], changes, "w", 2000 * epoch + first)
            directory = tmp_path / f"{number}-{epoch}"
            found.append(published(directory, store.publish(directory, epoch, "float32", after)))
        assert len(returned) == 100 and len(found[0][0]) == 2000
        assert found[0] == found[1]


def test_the_same_rows_expire_on_disk_and_in_memory_and_free_the_disk(tmp_path):
    config, number, chain = dataclasses.replace(CONFIG, ttl_steps=40), 0, []
    stores, seen = [make(None, config), make(tmp_path / "disk", config)], ({}, {})

    def train(until):
        nonlocal number
        while number < until:
            for store in stores:
                store.advance(number)
                rng = np.random.default_rng(number)
                for _ in range(10):
                    step(store, rng)
            number += 10

    def publish(epoch, after=None):
        for each, (store, rows) in enumerate(zip(stores, seen, strict=True)):
            directory = tmp_path / f"{each}-{epoch}"
            new, removed = published(directory, store.publish(directory, epoch, "float32", after))
            rows.update(new)
            for key in removed:
                rows.pop(key, None)

    train(100)
    for memory in (MEMORY, MEMORY // 3, 0):  # 0: the rows of which it is not known when they were trained are kept.
        np.testing.assert_array_equal(rows_of(stores[1]), rows_of(stores[0]))
        chain = stores[1].save(tmp_path / "saved", 1)
        stores[1].close()
        stores[1] = make(memory and tmp_path / "disk", config, memory)
        stores[1].restore(tmp_path / "saved", chain)
        if memory == MEMORY:
            train(200)
    assert stores[0].tables[CONFIG.name].counters.evicted > 100
    stores[1] = make(tmp_path / "disk", config)
    stores[1].restore(tmp_path / "saved", chain)
    publish(1)
    number = 300
    for _ in range(4):
        number += 30
        for store in stores:
            store.advance(number)
    assert [len(store.tables[CONFIG.name]) for store in stores] == [0, 0]
    publish(2, 1)
    assert seen == ({}, {})


def test_what_cannot_be_on_disk_is_refused(tmp_path):
    (tmp_path / "file").write_text("a user's")
    with pytest.raises(UserError, match=r"table_dir=.*file: .* name a directory"):
        make(tmp_path / "file")
    with pytest.raises(UserError, match="max_rows in .* leave out one of the two; ttl_steps removes old rows"):
        make(tmp_path / "disk", TableConfig("t", (2,), (0.1,), max_rows=10))
