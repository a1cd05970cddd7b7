import numpy as np
import pytest

from ctr_trainer.embedding import cache as cache_module
from ctr_trainer.embedding.cache import Cache
from ctr_trainer.embedding.config import TableConfig
from ctr_trainer.embedding.store import LocalStore
from ctr_trainer.embedding.table import Table

CONFIG = TableConfig("t", (2,), (1.0,), "sgd")


@pytest.fixture
def store():
    return LocalStore()


def _keys(*keys):
    return np.array(keys, np.int64)


def _rows(cache, keys):
    slots = cache.find(keys)
    return cache.rows[slots]


def _step(cache, keys, gradient, learning_rate=1.0):
    slots = cache.find_or_create(keys)
    cache.apply_gradients(slots, [np.full((len(keys), 2), gradient, np.float32)], learning_rate)


def test_a_worker_sees_its_own_steps_at_once_and_the_others_after_a_sync(store):
    a, b = Cache(store, CONFIG, "a"), Cache(store, CONFIG, "b")
    key = _keys(1)
    start = store.pull("t", key)
    _step(a, key, 1.0)
    _step(b, key, 10.0)
    np.testing.assert_allclose(a.rows, start - 1, rtol=1e-5)
    a.sync()
    np.testing.assert_allclose(a.rows, start - 1, rtol=1e-5)
    b.sync()
    np.testing.assert_allclose(b.rows, start - 11, rtol=1e-5)
    _step(a, key, 0.0)
    a.sync()
    np.testing.assert_allclose(a.rows, start - 11, rtol=1e-5)


def test_strict_sync_of_two_workers_equals_one_table_with_both_gradients(store):
    a, b, alone = Cache(store, CONFIG, "a"), Cache(store, CONFIG, "b"), Table(CONFIG)
    for step in range(1, 6):
        _step(a, _keys(1, 2), step)
        _step(b, _keys(2, 3), 2 * step)
        for worker in (a, b):
            worker.push()
        for worker in (a, b):
            worker.refresh()
        _step(alone, _keys(1, 2), step)
        _step(alone, _keys(2, 3), 2 * step)
    for worker, keys in ((a, _keys(1, 2)), (b, _keys(2, 3))):
        np.testing.assert_allclose(_rows(worker, keys), _rows(alone, keys), rtol=1e-5)


def test_a_row_that_was_not_stepped_since_the_last_sync_is_pulled_again(store):
    a, b = Cache(store, CONFIG, "a"), Cache(store, CONFIG, "b")
    key = _keys(1)
    start = store.pull("t", key)
    a.find_or_create(key)  # Looked up, not stepped.
    _step(b, key, 1.0)
    b.sync()
    np.testing.assert_array_equal(_rows(a, key), start)
    a.sync()
    assert len(a) == 0
    np.testing.assert_allclose(_rows(a, key), start - 1, rtol=1e-5)
    assert (a.hits, a.misses) == (1, 2)


def test_a_stepped_row_is_dropped_after_a_window_without_a_step(store):
    cache = Cache(store, CONFIG, "a")
    _step(cache, _keys(1), 1.0)
    cache.sync()
    assert len(cache) == 1
    _step(cache, _keys(2), 1.0)
    cache.sync()
    assert cache.find_or_create(_keys(2)).tolist() == [0]
    assert cache.misses == 2
    cache.find_or_create(_keys(1))
    assert cache.misses == 3


def test_evaluation_reads_zeros_for_unknown_keys_and_does_not_spoil_training(store):
    cache = Cache(store, CONFIG, "a")
    _step(cache, _keys(1), 1.0)
    cache.sync()
    assert cache.find(_keys(1, 2)).tolist() == [0, -1]
    slots = cache.find_or_create(_keys(2))
    np.testing.assert_array_equal(cache.rows[slots], store.pull("t", _keys(2)))
    assert store.stats()["tables"]["t"]["rows"] == 1


def test_optimizer_state_is_merged_too(store):
    config = TableConfig("u", (1,), (0.0,), "adagrad", initial_accumulator=1.0)
    a, b = Cache(store, config, "a"), Cache(store, config, "b")
    for worker, gradient in ((a, 2.0), (b, 3.0)):
        worker.apply_gradients(worker.find_or_create(_keys(1)), [np.float32([[gradient]])], 1.0)
    for worker in (a, b):
        worker.sync()
    # Accumulators 1 + 4 and 1 + 9 merge to 1 + 4 + 9; each worker stepped by its own.
    np.testing.assert_allclose(b.rows, [[-2 / np.sqrt(5) - 3 / np.sqrt(10), 14]], rtol=1e-6)


def test_a_worker_that_starts_again_under_its_name_is_heard(store):
    for _ in range(2):
        cache = Cache(store, CONFIG, "rank0")
        _step(cache, _keys(1), 1.0)
        cache.sync()
    assert store.tables["t"].rows[0, 0] == pytest.approx(store.tables["t"].initial_rows(_keys(1))[0, 0] - 2, rel=1e-5)


def test_a_sync_of_several_requests_equals_one(store, monkeypatch):
    monkeypatch.setattr(cache_module, "_REQUEST_ROWS", 3)
    cache = Cache(store, CONFIG, "a")
    keys = np.arange(1, 11)
    start = store.pull("t", keys)
    for count in (1, 2):
        _step(cache, keys, 1.0)
        cache.sync()
        np.testing.assert_allclose(store.pull("t", keys), start - count, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(_rows(cache, keys), store.pull("t", keys))


def test_steps_between_push_and_refresh_are_refused(store):
    cache = Cache(store, CONFIG, "a")
    _step(cache, _keys(1), 1.0)
    slots = cache.find(_keys(1))
    cache.push()
    with pytest.raises(RuntimeError, match="between push and refresh"):
        cache.apply_gradients(slots, [np.ones((1, 2), np.float32)], 1.0)
    cache.refresh()
    with pytest.raises(RuntimeError, match="without a push"):
        cache.refresh()


def test_sync_without_steps_and_the_counters(store):
    cache = Cache(store, CONFIG, "a")
    cache.sync()
    assert cache.bytes_synced == 0
    _step(cache, _keys(1, 0, 2), 1.0)
    assert (cache.hits, cache.misses) == (0, 2)
    assert cache.bytes_synced == 2 * (8 + 8)
    cache.sync()
    assert cache.bytes_synced == 2 * (8 + 8) + 2 * (8 + 8 + 8)
    assert cache.lookup_latency.name == "OpsEmbeddingLookup"
    assert (cache.lookup_latency.count, cache.push_latency.count) == (1, 2)
