"""Limits on which keys have rows, in a table that several workers share."""

import numpy as np
import pytest

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.worker_rows import TableRows
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from tests.embedding.table import shared_worker
from tests.embedding.table.test_shared_table import Worker
from tests.rows import read


def _config(**limits):
    return TableConfig("t", (2,), (0.5,), "sgd", seed=3, **limits)


def _two(**limits):
    """Returns the tables of two workers that share them."""
    memory = SharedMemory()
    other = SharedMemory(memory.address)
    return [Table(_config(**limits), True, None, each.under("t")) for each in (memory, other)]


def _step(table, keys, size=1.0):
    keys = np.array(keys)
    table.apply_gradients(table.find_or_create(keys), [np.full((len(keys), 2), size, np.float32)], 1.0)


def _keys(table):
    return sorted(key for key in table.keys.tolist() if key)


LIMITS = [
    dict(),
    dict(min_frequency=2),
    dict(max_rows=40),
    dict(max_rows=40, eviction="lfu", min_frequency=2),
    dict(ttl_steps=3),
]


@pytest.mark.parametrize("limits", LIMITS)
def test_one_worker_trains_a_shared_table_to_the_bit_like_a_table_of_its_own(limits):
    config = TableConfig("t", (2, 1), (0.5, 0.1), seed=3, **limits)
    tables = [Table(config), Table(config, True, None, SharedMemory().under("t"))]
    rng = np.random.default_rng(0)
    for step in range(60):
        keys = rng.permutation(np.unique(rng.integers(1, 200, 30)))
        for table in tables:
            table.advance(step)
            table.expire()
            gradients = [np.repeat(keys[:, None] % 7 - 3, dim, 1).astype(np.float32) for dim in config.dims]
            table.apply_gradients(table.find_or_create(keys), gradients, 0.05)
    assert _keys(tables[0]) == _keys(tables[1]) != []
    assert tables[0].stats() | {"bytes": 0} == tables[1].stats() | {"bytes": 0}
    keys = np.array(_keys(tables[0]))
    np.testing.assert_array_equal(read(tables[0], keys), read(tables[1], keys))
    for one, other in zip(*(table.use_of(table.find(keys)) or () for table in tables), strict=True):
        np.testing.assert_array_equal(one, other)


def test_admission_and_max_rows_count_all_workers_together():
    one, other = _two(min_frequency=3)
    _step(one, [7, 8])
    _step(other, [7])
    assert _keys(one) == []
    _step(one, [7])
    assert (_keys(other), other.counters.admitted, other.counters.refused) == ([7], 1, 3)
    np.testing.assert_array_equal(read(other, np.array([7])), other.initial_rows(np.array([7])) - 1)
    one, other = _two(max_rows=5)
    for key in range(1, 20):
        _step(one if key % 2 else other, [key])
    assert len(one) == len(other) == 5
    assert one.counters.created - one.counters.evicted == 5
    assert one.stats() == other.stats()


def test_a_row_that_another_worker_evicted_is_neither_read_nor_trained():
    one, other = map(TableRows, _two(max_rows=2))
    keys, new = np.array([1, 2]), np.array([3, 4])
    slots = one.find_or_create(keys)
    table = other._table
    _step(table, new, 7.0)
    assert other.find(new).tolist() == slots.tolist()  # The new rows are in the slots of the evicted ones.
    trained = read(table, new)
    np.testing.assert_array_equal(one.read(keys, slots, create=True), table.initial_rows(keys))
    one.apply_gradients(keys, slots, [np.full((2, 2), 100, np.float32)], 1.0)
    np.testing.assert_array_equal(read(table, new), trained)


def test_rows_expire_by_the_clock_that_one_worker_sets():
    one, other = _two(ttl_steps=10)
    one.advance(5)
    _step(other, [1, 2])
    one.advance(12)
    _step(other, [2])
    one.advance(16)
    one.expire()
    assert (_keys(other), other.counters.evicted) == ([2], 1)


def test_a_delta_takes_out_what_another_worker_evicted_and_counts_go_on(tmp_path):
    memory = SharedMemory()
    stores = [LocalStore(each) for each in (memory, SharedMemory(memory.address))]
    config = _config(max_rows=3, min_frequency=2)
    for store in stores:
        store.create_table(config)
    one, other = (store.tables["t"] for store in stores)
    for table in (one, other):
        _step(table, [1, 2, 3])
    full = stores[0].save(tmp_path, 1)
    for table in (other, one):
        _step(table, [4, 5])
    _step(other, [6])
    delta = stores[0].save(tmp_path, 2, since=full[-1]["snapshot"])
    restored = LocalStore()
    restored.create_table(config)
    restored.restore(tmp_path, full + delta)
    table = restored.tables["t"]
    assert _keys(table) == _keys(one)
    assert len(table) == 3
    keys = np.array(_keys(table))
    np.testing.assert_array_equal(read(table, keys), read(one, keys))
    _step(table, [6])
    assert 6 in _keys(table)


def test_concurrent_evictions_leave_each_row_its_own_gradients_only():
    memory, table = shared_worker.open_table(config=shared_worker.LIMITED)
    other = Worker(memory.address, "crowded")
    other.go()
    shared_worker.crowd(table, 0)
    other.ends_well()
    keys = np.array(_keys(table))
    assert 0 < len(keys) <= shared_worker.LIMITED.max_rows
    assert table.counters.created - table.counters.evicted == len(keys)
    steps = (table.initial_rows(keys) - read(table, keys)) / shared_worker.gradient_of(keys)
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-3)
    assert (steps[:, 0] >= 1).all()
    assert (steps[:, 0] <= 2 * shared_worker.STEPS).all()
