"""Copies of workers that each sync alone: SGD, of whose change each of two workers sends half."""

import concurrent.futures

import numpy as np
import pytest

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.worker_rows import TableRows
from ctr_trainer.embedding.table.row_form import DTYPES
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import copied_rows, row_copies
from ctr_trainer.embedding.worker.row_copies import Group, RowCopies
from ctr_trainer.settings.optimizers import RowAdagrad
from tests.rows import pulled

CONFIG = TableConfig("t", (2,), (1.0,), "sgd")


@pytest.fixture
def store():
    return LocalStore()


def _copies(store, worker="a", config=CONFIG, **settings):
    """Returns the copies of one of two workers."""
    return RowCopies(store, config, worker, Group(groups=2), **settings)


def _keys(*keys):
    return np.array(keys, np.int64)


def _rows(cache, keys):
    return cache.take(cache.find_or_create(keys))


def _step(cache, keys, gradient, learning_rate=1.0):
    slots = cache.find_or_create(keys)
    cache.apply_gradients(keys, slots, [np.full((len(keys), 2), 2 * gradient, np.float32)], learning_rate)


def test_a_worker_sees_its_own_steps_at_once_and_others_after_a_sync(store):
    a, b = _copies(store, "a"), _copies(store, "b")
    keys = _keys(1, 2, 3)
    start = pulled(store, "t", keys)
    _step(a, keys, 1.0)
    _step(b, _keys(3, 4), 10.0)
    np.testing.assert_allclose(_rows(a, keys), start - 2, rtol=1e-5)
    a.sync()
    np.testing.assert_allclose(_rows(a, keys), start - 1, rtol=1e-5)
    assert a.rows_pulled == 0
    b.sync()
    np.testing.assert_allclose(_rows(b, _keys(3)), start[2:] - 11, rtol=1e-5)
    assert b.rows_pulled == 1
    _step(a, keys, 0.0)
    a.sync()
    assert a.rows_pulled == 1
    np.testing.assert_allclose(_rows(a, keys), start - [[1], [1], [11]], rtol=1e-5)
    a.find_or_create(_keys(5))  # Looked up, not stepped.
    _step(b, _keys(5), 1.0)
    b.sync()
    misses = a.misses
    np.testing.assert_array_equal(_rows(a, _keys(5)), store.tables["t"].initial_rows(_keys(5)))
    a.sync()
    np.testing.assert_array_equal(_rows(a, _keys(5)), pulled(store, "t", _keys(5)))
    assert (a.misses, a.rows_pulled) == (misses + 1, 2)


def test_strict_sync_of_two_workers_equals_one_table_with_both_gradients(store):
    a, b, alone = _copies(store, "a"), _copies(store, "b"), TableRows(Table(CONFIG))
    for step in range(1, 6):
        _step(a, _keys(1, 2), step)
        _step(b, _keys(2, 3), 2 * step)
        for worker in (a, b):
            worker.flush()
        for worker in (a, b):
            worker.refresh()
        _step(alone, _keys(1, 2), step / 2)
        _step(alone, _keys(2, 3), step)
    for worker, keys in ((a, _keys(1, 2)), (b, _keys(2, 3))):
        np.testing.assert_allclose(_rows(worker, keys), _rows(alone, keys), rtol=1e-5)


def test_an_unused_row_is_checked_and_pulled_only_if_another_changed_it(store):
    a, b = _copies(store, "a"), _copies(store, "b")
    _step(a, _keys(1, 2), 1.0)
    a.sync()
    _step(a, _keys(3), 1.0)
    a.sync()
    _step(b, _keys(2), 1.0)
    b.sync()
    misses = a.misses
    a.find_or_create(_keys(3))
    assert a.misses == misses  # Stepped in the window before, so its sync has checked it.
    a.find_or_create(_keys(1, 2))
    assert (a.misses, a.rows_pulled) == (misses + 2, 1)
    np.testing.assert_array_equal(_rows(a, _keys(1, 2, 3)), pulled(store, "t", _keys(1, 2, 3)))


class _BeforeTheAnswer(LocalStore):
    """Calls `then` after a request has been carried out and before its answer is there."""

    then = staticmethod(lambda: None)

    def sync(self, *arguments):
        answer = super().sync(*arguments)
        self.then()
        return answer

    def pull(self, *arguments):
        answer = super().pull(*arguments)
        self.then()
        return answer


def test_steps_during_a_sync_are_kept_and_go_out_with_the_next():
    store = _BeforeTheAnswer()
    a, b = _copies(store, "a"), _copies(store, "b")
    start = pulled(store, "t", _keys(1, 2))
    _step(a, _keys(1, 2), 1.0)
    _step(b, _keys(1), 10.0)
    b.sync()

    def meanwhile():
        store.then = lambda: None
        _step(a, _keys(1, 2), 100.0)
        np.testing.assert_allclose(_rows(a, _keys(1, 2)), start - 201, rtol=1e-5)

    store.then = meanwhile
    a.sync()
    np.testing.assert_allclose(pulled(store, "t", _keys(1, 2)), start - [[11], [1]], rtol=1e-5)
    np.testing.assert_allclose(_rows(a, _keys(1, 2)), start - [[211], [201]], rtol=1e-5)
    a.sync()
    np.testing.assert_allclose(pulled(store, "t", _keys(1, 2)), start - [[111], [101]], rtol=1e-5)
    np.testing.assert_array_equal(_rows(a, _keys(1, 2)), pulled(store, "t", _keys(1, 2)))


def test_a_pull_overtaken_by_a_sync_changes_nothing():
    store = _BeforeTheAnswer()
    a, b = _copies(store, "a"), _copies(store, "b")
    _step(b, _keys(1), 1.0)
    b.sync()

    def meanwhile():
        store.then = lambda: None
        _step(b, _keys(1), 10.0)
        b.sync()
        _step(a, _keys(1), 100.0)
        a.sync()

    store.then = meanwhile
    a.pull_ahead(_keys(1))  # What it brings is older than what the sync brought.
    np.testing.assert_array_equal(_rows(a, _keys(1)), pulled(store, "t", _keys(1)))
    _step(a, _keys(1), 1000.0)
    a.sync()
    start = store.tables["t"].initial_rows(_keys(1))
    np.testing.assert_allclose(pulled(store, "t", _keys(1)), start - 1111, rtol=1e-5)


def test_a_row_that_is_dropped_while_it_is_checked_ahead_does_not_begin_anew(monkeypatch):
    monkeypatch.setattr(copied_rows, "_TIDY_ROWS", 1)
    store = _BeforeTheAnswer()
    copies = _copies(store, "a")
    _step(copies, np.arange(1, 101), 1.0)
    for _ in range(15):
        _step(copies, _keys(1), 1.0)
        copies.sync()

    def meanwhile():
        store.then = lambda: None
        copies.begin_window()

    store.then = meanwhile
    since = copies.pull_ahead(_keys(50))
    assert len(copies) == 1
    copies.sync_window()
    slots = copies.find_or_create(_keys(50), since)
    np.testing.assert_array_equal(copies.take(slots), pulled(store, "t", _keys(50)))


def test_rows_pulled_ahead_are_used_in_the_next_window_too_and_no_longer(store):
    cache = _copies(store, "a")
    since = cache.pull_ahead(_keys(1, 2))
    cache.find_or_create(_keys(1, 2), since)
    assert (cache.hits, cache.misses, cache.pulled_ahead) == (2, 0, 2)
    cache.sync()
    cache.find_or_create(_keys(1, 2), since)
    assert (cache.hits, cache.misses) == (4, 0)
    cache.find_or_create(_keys(1, 2))
    assert (cache.hits, cache.misses) == (4, 2)


def test_rows_unused_for_eight_windows_leave_once_there_are_many(store, monkeypatch):
    monkeypatch.setattr(copied_rows, "_TIDY_ROWS", 100)
    cache = _copies(store, "a")
    _step(cache, np.arange(1, 201), 1.0)
    for _ in range(15):
        _step(cache, _keys(7, 300), 1.0)
        cache.sync()
    assert len(cache) == 201
    _step(cache, _keys(7, 300), 1.0)
    cache.sync()  # The sixteenth; every eighth looks for rows that were not used in the eight before.
    assert len(cache) == 2
    everything = np.arange(1, 302)
    slots = cache.find_or_create(everything)
    np.testing.assert_array_equal(cache.take(slots), pulled(store, "t", everything))


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_workers_and_one_that_pulls_ahead_at_random_lose_no_step(store, dtype):
    """Gradients are whole numbers, and new rows zero, so that sums are exact in any order and form."""
    config = TableConfig("u", (4,), (0.0,), "sgd", row_dtype=dtype)
    workers = [_copies(store, name, config) for name in "ab"]
    rng, expected = np.random.default_rng(0), np.zeros((41, 4))
    for step in range(300):
        worker = workers[rng.integers(2)]
        keys = rng.choice(np.arange(1, 41), 12, replace=False)
        gradient = rng.integers(-3, 4, (12, 4)).astype(np.float32)
        since = worker.pull_ahead(keys) if step % 3 == 0 else None
        if step % 5 == 0:
            worker.sync()
        worker.apply_gradients(keys, worker.find_or_create(keys, since), [2 * gradient], 1.0)
        expected[keys] -= gradient
    for worker in workers:
        worker.flush()
    np.testing.assert_array_equal(pulled(store, "u", np.arange(1, 41)), expected[1:])


def test_threads_that_train_pull_ahead_and_sync_lose_no_step(store):
    config = TableConfig("u", (2,), (0.0,), "sgd")
    cache, other = (_copies(store, name, config) for name in "ab")
    rng, expected = np.random.default_rng(0), np.zeros((2001, 2))
    batches = [rng.choice(np.arange(1, 2001), 500, replace=False) for _ in range(200)]
    threads, sync = concurrent.futures.ThreadPoolExecutor(2), None
    ahead = threads.submit(lambda: [cache.pull_ahead(keys) for keys in batches])
    for number, keys in enumerate(batches):
        cache.apply_gradients(keys, cache.find_or_create(keys), [np.full((500, 2), 2, np.float32)], 1.0)
        expected[keys] -= 1
        if number % 3 == 0:
            _step(other, keys, 1.0)
            expected[keys] -= 1
            other.sync()
        if number % 5 == 0:
            if sync:
                sync.result(60)
            cache.begin_window()
            sync = threads.submit(cache.sync_window)
    sync.result(60)
    ahead.result(60)
    cache.flush()
    np.testing.assert_array_equal(pulled(store, "u", np.arange(1, 2001)), expected[1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups", [1, 2])
def test_copies_equal_the_rounded_rows_of_the_store_to_the_bit(store, dtype, groups):
    """A worker computes the row that the store will have, so the answer of a sync leaves it out."""
    config = TableConfig("u", (4, 1), (0.01, 0.0), "adagrad", row_dtype=dtype)
    one, keys, rng = RowCopies(store, config, "a", Group(groups=groups)), np.arange(1, 101), np.random.default_rng(0)
    for _ in range(20):
        gradients = [rng.normal(size=(100, dim)).astype(np.float32) for dim in (4, 1)]
        one.apply_gradients(keys, one.find_or_create(keys), gradients, 0.05)
        one.sync()
        np.testing.assert_array_equal(one._copies.table.take(one.find_or_create(keys)), pulled(store, "u", keys))
    assert one.rows_pulled == 0
    assert store.tables["u"].stored.shape[1] == {"float32": 10, "float16": 8, "int8": 8}[dtype]


def test_a_worker_makes_the_rows_of_new_keys_itself(store):
    cache = _copies(store, "a")
    _step(cache, _keys(1), 1.0)
    cache.sync()
    slots = cache.find_or_create(_keys(2, 5, 6))
    np.testing.assert_array_equal(cache.take(slots), pulled(store, "t", _keys(2, 5, 6)))
    assert store.stats()["tables"]["t"]["rows"] == 1 and cache.rows_pulled == 0


def test_optimizer_state_is_merged_and_a_restarted_worker_is_heard(store):
    config = TableConfig("u", (1,), (0.0,), RowAdagrad(initial_accumulator=1.0))
    a, b = _copies(store, "a", config), _copies(store, "b", config)
    for worker, gradient in ((a, 2.0), (b, 3.0)):
        worker.apply_gradients(_keys(1), worker.find_or_create(_keys(1)), [np.float32([[gradient]])], 1.0)
    for worker in (a, b):
        worker.sync()
    # Accumulators 1 + 4 and 1 + 9 merge to 1 + 4 + 9; each worker stepped by its own.
    np.testing.assert_allclose(b._copies.table.stored, [[-2 / np.sqrt(5) - 3 / np.sqrt(10), 14]], rtol=1e-6)
    for _ in range(2):
        cache = _copies(store, "rank0")
        _step(cache, _keys(1), 1.0)
        cache.sync()
    assert store.tables["t"].stored[0, 0] == pytest.approx(store.tables["t"].initial_rows(_keys(1))[0, 0] - 2, rel=1e-5)


def test_a_sync_of_several_requests_equals_one(store, monkeypatch):
    monkeypatch.setattr(row_copies, "_REQUEST_ROWS", 3)
    cache = _copies(store, "a")
    keys = np.arange(1, 11)
    start = pulled(store, "t", keys)
    for count in (1, 2):
        _step(cache, keys, 1.0)
        cache.sync()
        np.testing.assert_allclose(pulled(store, "t", keys), start - count, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(_rows(cache, keys), pulled(store, "t", keys))


def test_sync_without_steps_and_the_counters(store):
    cache = _copies(store, "a")
    cache.sync()
    assert cache.bytes_synced == 0
    _step(cache, _keys(1, 0, 2), 1.0)
    assert (cache.hits, cache.misses) == (0, 2)
    assert cache.bytes_synced == 2 * (8 + 4)  # Keys and versions; the service has no row to send.
    cache.sync()
    assert cache.bytes_synced == 2 * (8 + 4) + 2 * (8 + 4 + 8)
    assert cache.lookup_latency.name == "OpsEmbeddingLookup"
    assert cache.push_latency.name == "OpsPushGrad"
    # Requests are what counts: one for the two rows, one with their changes. The first sync had none to send.
    assert (cache.lookup_latency.count, cache.push_latency.count) == (1, 1)
    _step(cache, _keys(1, 2), 1.0)  # They are here, and up to date.
    assert cache.lookup_latency.count == 1
