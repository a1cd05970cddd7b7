"""One copy of the rows on each host: SGD at the rate 1, so that a row loses what its gradients add up to."""

import concurrent.futures
import dataclasses

import numpy as np
import pytest

from ctr_trainer.embedding.memory.shared_memory import SharedMemory
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import copied_rows, row_copies
from ctr_trainer.embedding.worker.row_copies import Group, RowCopies
from tests.rows import pulled

CONFIG = TableConfig("t", (2,), (0.0,), "sgd")


class Asked(LocalStore):
    """Remembers the keys of each request for rows, and which requests sent rows."""

    def __init__(self):
        super().__init__()
        self.keys, self.sent = [], []

    def put(self, *arguments):
        self.sent.append("put")
        super().put(*arguments)

    def sync(self, *arguments):
        self.sent.append("sync")
        return super().sync(*arguments)

    def pull(self, table, keys, *others):
        self.keys.append(keys.tolist())
        return super().pull(table, keys, *others)


@pytest.fixture
def store():
    return Asked()


def _host(store, workers=2, groups=1, config=CONFIG, **settings):
    """Returns the copies of each worker of a host, of which the first syncs."""
    own = SharedMemory()
    memories = [own, *(SharedMemory(own.address) for _ in range(workers - 1))]
    return [
        RowCopies(
            store,
            config,
            f"rank{rank}",
            Group(groups, is_syncer=rank == 0, is_alone=False),
            memory=memory.under(config.name),
            **settings,
        )
        for rank, memory in enumerate(memories)
    ]


def _sync(host):
    for worker in host:
        worker.sync()


def _keys(*keys):
    return np.array(keys, np.int64)


def _step(rows, keys, gradient):
    slots = rows.find_or_create(keys)
    rows.apply_gradients(keys, slots, [np.full((len(keys), 2), gradient, np.float32)], 1.0)


def _read(rows, keys):
    slots = rows.find_or_create(keys)
    return rows.take(slots).tolist()


def test_a_step_counts_for_the_host_at_once_and_for_the_service_after_a_sync(store):
    one, other = host = _host(store)
    _step(one, _keys(1, 2), 1.0)
    _step(other, _keys(2, 3), 10.0)
    for worker in host:
        assert _read(worker, _keys(1, 2, 3)) == [[-1, -1], [-11, -11], [-10, -10]]
    other.sync()
    assert len(store.tables["t"]) == 0
    one.sync()
    assert pulled(store, "t", _keys(1, 2, 3)).tolist() == [[-1, -1], [-11, -11], [-10, -10]]
    _step(other, _keys(1), 1.0)
    one.sync()
    assert pulled(store, "t", _keys(1)).tolist() == [[-2, -2]]


def test_a_key_is_asked_for_once_by_one_worker_of_a_lone_host(store):
    one, other = host = _host(store)
    _step(one, _keys(1, 2), 1.0)
    _step(other, _keys(2, 3), 1.0)
    for _ in range(3):
        _sync(host)
        for worker in host:
            _step(worker, _keys(1, 2, 3), 1.0)
    assert store.keys == [[1, 2], [3]]
    assert (one.misses, other.misses) == (2, 1)


def test_a_service_without_rows_is_asked_for_none_until_rows_are_dropped(store, monkeypatch):
    monkeypatch.setattr(copied_rows, "_TIDY_ROWS", 1)
    monkeypatch.setattr(row_copies, "_MUCH", 0.0)
    one, other = host = _host(store)
    for worker in host:
        worker.begin()
    one.pull_ahead(_keys(1))
    for worker in host:
        _step(worker, np.arange(1, 101), 1.0)
        assert (worker.hits, worker.misses) == (100, 0)
    for _ in range(10):
        _step(other, _keys(50), 1.0)
        _sync(host)
    assert (store.keys, len(one)) == ([], 100)
    one.flush()
    assert len(one) == 1
    assert _read(other, _keys(50, 60, 200)) == [[-12, -12], [-2, -2], [0, 0]]
    assert store.keys == [[60, 200]]


@pytest.mark.parametrize(
    ("settings", "sent"),
    [
        (dict(), "put"),
        (dict(groups=2), "sync"),
        (dict(config=dataclasses.replace(CONFIG, row_dtype="float16")), "put"),
        (dict(config=dataclasses.replace(CONFIG, ttl_steps=9)), "sync"),
    ],
)
def test_whole_rows_are_sent_if_nobody_else_changes_them(store, settings, sent):
    one, other = host = _host(store, **settings)
    _step(other, _keys(1), 1.5 * settings.get("groups", 1))
    _sync(host)
    assert store.sent == [sent]
    assert pulled(store, "t", _keys(1)).tolist() == [[-1.5, -1.5]]


def test_a_late_answer_does_not_undo_steps_that_were_synced_meanwhile(store):
    one, other = _host(store)
    pull = store.pull

    def late(*arguments):
        store.pull = pull
        _step(other, _keys(1), 1.0)  # Made here, stepped and synced, before the service reads the row for `one`.
        one.sync()
        answer = pull(*arguments)
        _step(other, _keys(1), 2.0)
        return answer

    store.pull = late
    assert _read(one, _keys(1, 2)) == [[-3, -3], [0, 0]]
    one.sync()
    assert pulled(store, "t", _keys(1)).tolist() == [[-3, -3]]


def test_what_one_host_changed_comes_to_both_workers_of_another_with_its_sync(store):
    (a, b), (c, d) = (_host(store, groups=2) for _ in range(2))
    for worker, gradient in ((a, 2.0), (b, 4.0), (c, 20.0)):  # Each of the two hosts sends half of its change.
        _step(worker, _keys(1), gradient)
    _sync((a, b))
    _sync((c, d))
    assert _read(c, _keys(1)) == _read(d, _keys(1)) == [[-13, -13]]
    assert _read(a, _keys(1)) == _read(b, _keys(1)) == [[-3, -3]]
    _sync((a, b))
    assert _read(b, _keys(1)) == [[-13, -13]]
    assert _read(a, _keys(1)) == [[-13, -13]]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_flush_brings_all_of_both_workers_to_the_service_to_the_bit(store, dtype):
    one, other = host = _host(store, config=dataclasses.replace(CONFIG, row_dtype=dtype))
    for worker in host:
        slots = worker.find_or_create(_keys(1))
        worker.apply_gradients(_keys(1), slots, [np.float32([[-1.0, -1 / 3]])], 1.0)
    _sync(host)
    other.flush()
    one.flush()
    np.testing.assert_array_equal(pulled(store, "t", _keys(1)), other.take(other.find_or_create(_keys(1))))


@pytest.mark.parametrize(("much", "left"), [(0.0, 2), (row_copies._MUCH, 100)], ids=["much", "little"])
def test_a_flush_drops_unused_rows_if_they_take_much_memory(store, monkeypatch, much, left):
    """Else each checkpoint would cost the steps after it what it takes to pull the rows again."""
    monkeypatch.setattr(copied_rows, "_TIDY_ROWS", 1)
    monkeypatch.setattr(row_copies, "_MUCH", much)
    one, other = host = _host(store)
    _step(other, np.arange(1, 101), 1.0)
    for _ in range(10):
        _step(other, _keys(50, 60), 1.0)
        _sync(host)
    one.flush()
    assert len(one) == len(other) == left
    assert _read(other, _keys(50, 60, 70)) == [[-11, -11], [-11, -11], [-1, -1]]


def test_a_row_that_the_service_evicted_begins_anew(store):
    config = TableConfig("t", (2,), (0.0,), "sgd", max_rows=1, eviction="lru")
    host = _host(store, config=config)
    _step(host[1], _keys(1), 1.0)
    _sync(host)
    _step(host[1], _keys(2), 1.0)
    _sync(host)
    assert store.stats()["tables"]["t"]["rows"] == 1
    _step(host[1], _keys(1), 4.0)
    _sync(host)
    assert pulled(store, "t", _keys(1)).tolist() == _read(host[0], _keys(1)) == [[-4, -4]]


def test_no_step_is_lost_while_two_workers_step_one_pulls_ahead_and_one_syncs(store):
    host, rng = _host(store), np.random.default_rng(0)
    batches = [[rng.choice(np.arange(1, 2001), 500, replace=False) for _ in range(100)] for _ in host]

    def train(worker, keys):
        for each in keys:
            worker.apply_gradients(each, worker.find_or_create(each), [np.ones((500, 2), np.float32)], 1.0)

    work = [lambda: train(host[0], batches[0]), lambda: train(host[1], batches[1])]
    work.append(lambda: [host[1].pull_ahead(keys) for keys in batches[1]])
    with concurrent.futures.ThreadPoolExecutor(len(work)) as threads:
        running = [threads.submit(each) for each in work]
        while not all(each.done() for each in running):
            host[0].sync()
    for each in running:
        each.result()
    host[0].flush()
    expected = np.zeros((2001, 2))
    for keys in batches[0] + batches[1]:
        expected[keys] -= 1
    np.testing.assert_array_equal(pulled(store, "t", np.arange(1, 2001)), expected[1:])
