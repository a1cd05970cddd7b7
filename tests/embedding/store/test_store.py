import dataclasses
import threading

import numpy as np
import pytest

from ctr_trainer.embedding.store import local_store
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError
from tests.rows import pulled

CONFIG = TableConfig("t", (2,), (1.0,), "sgd")


@pytest.fixture
def store():
    store = LocalStore()
    store.create_table(CONFIG)
    return store


def _ones(count):
    return np.ones((count, 2), np.float32)


def test_a_table_is_made_once_and_another_configuration_is_refused(store):
    store.sync("t", np.array([1]), _ones(1), "w", 1)
    store.create_table(TableConfig("t", [2], [1.0], "sgd"))
    assert store.stats()["tables"]["t"]["rows"] == 1
    with pytest.raises(UserError, match=r"table t exists with optimizer = sgd, not adagrad"):
        store.create_table(dataclasses.replace(CONFIG, optimizer="adagrad"))


@pytest.mark.parametrize("name", ["", "../t", "a/b", ".t", "a b"])
def test_a_table_name_that_is_no_file_name_is_refused(store, name):
    with pytest.raises(UserError, match="table name"):
        store.create_table(dataclasses.replace(CONFIG, name=name))


def test_pull_creates_no_row(store):
    table = store.tables["t"]
    keys = np.array([4, 5])
    np.testing.assert_array_equal(pulled(store, "t", keys), table.initial_rows(keys))
    np.testing.assert_array_equal(pulled(store, "t", keys, missing="zeros"), np.zeros((2, 2)))
    assert len(table) == 0


def test_a_sequence_is_applied_once_for_each_worker_and_table(store):
    store.create_table(dataclasses.replace(CONFIG, name="u"))
    key = np.array([4])
    start = pulled(store, "t", key)
    for worker, sequence in (("a", 1), ("a", 1), ("b", 1), ("a", 2), ("a", 1)):
        store.sync("t", key, _ones(1), worker, sequence)
    np.testing.assert_allclose(pulled(store, "t", key), start + 3, rtol=1e-6)
    store.sync("u", key, _ones(1), "a", 1)
    assert store.stats()["tables"]["u"]["rows"] == 1


def _known(*versions):
    return np.array(versions, np.uint32)


def test_a_sync_answers_the_rows_that_others_changed_since(store):
    keys = np.array([1, 2, 3])
    ours = store.sync("t", keys, _ones(3), "a", 1, _known(0, 0, 0))
    assert ours.positions.tolist() == []
    store.sync("t", np.array([2]), _ones(1), "b", 1)
    newer = store.sync("t", keys, _ones(3), "a", 2, ours.versions)
    assert newer.positions.tolist() == [1]
    np.testing.assert_array_equal(newer.rows, pulled(store, "t", np.array([2])))
    assert store.sync("t", keys, _ones(3), "a", 3, newer.versions).positions.tolist() == []


def test_a_repeated_sync_answers_all_rows_as_they_are_by_then(store):
    key = np.array([4])
    store.sync("t", key, _ones(1), "a", 1, _known(0))
    store.sync("t", key, _ones(1), "b", 1)
    for known in (_known(0), None):
        again = store.sync("t", key, _ones(1), "a", 1, known)
        np.testing.assert_array_equal(again.rows, pulled(store, "t", key))
    assert store.pull("t", key, again.versions).positions.tolist() == []


def test_pull_leaves_out_what_is_known_and_what_is_not_there(store):
    store.sync("t", np.array([1, 2]), _ones(2), "a", 1)
    keys = np.array([1, 2, 3])
    newer = store.pull("t", keys, _known(0, 0, 0))
    assert newer.positions.tolist() == [0, 1]
    np.testing.assert_array_equal(newer.rows, store.tables["t"].stored)
    assert newer.versions[2] == 0
    assert store.pull("t", keys, newer.versions).positions.tolist() == []


def test_a_restored_row_and_a_row_that_is_gone_are_newer(store, tmp_path):
    store.sync("t", np.array([1]), _ones(1), "a", 1)
    known = store.pull("t", np.array([1]), _known(0)).versions
    store.restore(tmp_path, [])
    gone = store.pull("t", np.array([1]), known)
    assert gone.versions.tolist() == [0]
    np.testing.assert_array_equal(gone.rows, store.tables["t"].initial_rows(np.array([1])))
    # A version from before the restore is never taken for a later one.
    assert store.sync("t", np.array([1]), _ones(1), "a", 2, known).positions.tolist() == [0]
    store.sync("t", np.array([1]), _ones(1), "a", 1)
    known = store.pull("t", np.array([1]), _known(0)).versions
    store.restore(tmp_path, store.save(tmp_path, 1))
    assert store.pull("t", np.array([1]), known).positions.tolist() == [0]


def test_versions_cost_4_bytes_a_row_and_running_out_is_refused(store):
    bytes_before = store.stats()["tables"]["t"]["bytes"]
    store.sync("t", np.arange(1, 11), _ones(10), "a", 1)
    assert store.stats()["tables"]["t"]["bytes"] - bytes_before == 10 * (8 + 2 * 4 + 4)
    store._versions["t"]._last = 2**32 - 2
    with pytest.raises(UserError, match="restart the service"):
        store.sync("t", np.arange(1, 11), _ones(10), "a", 2)


def test_a_put_sets_rows_and_a_late_copy_of_an_earlier_one_does_nothing(store):
    keys = np.array([4, 5])
    store.sync("t", keys[:1], _ones(1), "b", 1)
    for rows, sequence in ((7, 1), (8, 2), (7, 1)):
        store.put("t", keys, rows * _ones(2), "a", sequence)
    assert pulled(store, "t", keys).tolist() == [[8, 8], [8, 8]]


def test_rows_of_a_put_have_a_new_version_and_go_into_the_next_delta(store, tmp_path):
    keys = np.array([4, 5])
    store.put("t", keys, _ones(2), "a", 1)
    known = store.pull("t", keys, np.zeros(2, np.uint32)).versions
    files = store.save(tmp_path, 1)
    store.put("t", keys[:1], 3 * _ones(1), "a", 2)
    assert store.pull("t", keys, known).positions.tolist() == [0]
    files += store.save(tmp_path, 2, files[0]["snapshot"])
    store.restore(tmp_path, files)
    assert pulled(store, "t", keys).tolist() == [[3, 3], [1, 1]]


@pytest.mark.parametrize("limit", [dict(min_frequency=2), dict(max_rows=9), dict(ttl_steps=3)])
def test_a_put_to_a_table_with_limits_is_refused(store, limit):
    store.create_table(dataclasses.replace(CONFIG, name="limited", **limit))
    with pytest.raises(UserError, match="table limited: a put to a table with limits"):
        store.put("limited", np.array([1]), _ones(1), "a", 1)


@pytest.mark.parametrize(
    ("keys", "deltas", "message"),
    [
        ([1, 2], np.ones((1, 2), np.float32), r"float32\[1, 2\], expected float32\[2, 2\]"),
        ([1], np.ones((1, 3), np.float32), r"expected float32\[1, 2\]"),
        ([1], np.ones((1, 2)), "float64"),
        ([0], np.ones((1, 2), np.float32), "key 0"),
        ([7, 8], np.float32([[1, 1], [1, np.nan]]), "key 8 is not finite"),
        ([7], np.float32([[-np.inf, 1]]), "key 7 is not finite"),
    ],
)
@pytest.mark.parametrize("op", ["put", "sync"])
def test_a_bad_put_or_sync_is_refused_and_harmless(store, op, keys, deltas, message):
    send = getattr(store, op)
    with pytest.raises(UserError, match=message):
        send("t", np.array(keys), deltas, "a", 1)
    assert len(store.tables["t"]) == 0
    send("t", np.array([1]), _ones(1), "a", 1)  # The sequence was not used up.
    assert len(store.tables["t"]) == 1


@pytest.mark.parametrize("send", ["put", "sync"])
def test_rows_that_are_not_in_the_form_of_the_table_are_refused(store, send):
    store.create_table(TableConfig("u", (8,), (0.0,), "sgd", row_dtype="int8"))
    with pytest.raises(UserError, match=r"float32\[1, 8\], expected float32\[1, 3\]"):
        getattr(store, send)("u", np.array([1]), np.ones((1, 8), np.float32), "a", 1)
    form = store.config("u").form
    with pytest.raises(UserError, match="the change of key 1 is not finite"):
        getattr(store, send)("u", np.array([1]), form.encode(np.full((1, 8), np.nan, np.float32)), "a", 1)
    assert len(store.tables["u"]) == 0
    getattr(store, send)("u", np.array([1]), form.encode(np.ones((1, 8), np.float32)), "a", 1)
    np.testing.assert_array_equal(pulled(store, "u", np.array([1])), np.ones((1, 8)))


def test_an_unknown_table_and_versions_of_another_kind_are_refused(store):
    with pytest.raises(UserError, match="no table 'x'; there are: t"):
        pulled(store, "x", np.array([1]))
    for versions in (np.zeros(2, np.uint32), np.zeros(1, np.int64)):
        with pytest.raises(UserError, match=r"table t: versions .*, expected uint32\[1\]"):
            store.pull("t", np.array([1]), versions)


def test_syncs_from_several_threads_all_arrive(store):
    keys = np.arange(1, 2001)
    start = pulled(store, "t", keys)

    def send(worker):
        for sequence in range(1, 21):
            store.sync("t", keys, _ones(2000), worker, sequence)

    threads = [threading.Thread(target=send, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    np.testing.assert_allclose(pulled(store, "t", keys), start + 80, rtol=1e-5)


def test_blocks_cover_each_row_once(store):
    keys = np.arange(1, local_store._BLOCK_BYTES // 16 + 1001)
    store.sync("t", keys, np.zeros((len(keys), 2), np.float32), "a", 1)
    blocks = list(store.read_blocks("t"))
    assert len(blocks) > 1
    np.testing.assert_array_equal(np.concatenate([block for block, _ in blocks]), keys)
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in blocks]), store.tables["t"].stored)


def test_rows_that_come_while_the_blocks_are_read_are_in_a_later_block(store):
    store.sync("t", np.array([1, 2]), _ones(2), "a", 1)
    blocks = store.read_blocks("t")
    assert next(blocks)[0].tolist() == [1, 2]
    store.sync("t", np.array([3]), _ones(1), "a", 2)
    assert [keys.tolist() for keys, _ in blocks] == [[3]]
