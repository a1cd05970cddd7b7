"""Which keys have rows: admission, eviction, and the slots that are used again."""

import numpy as np
import pytest

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.index.key_kernels import mix
from ctr_trainer.embedding.memory.growable_array import TableMemory
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.worker_rows import TableRows
from ctr_trainer.embedding.table import row_limits
from ctr_trainer.embedding.table.admission import Admission
from ctr_trainer.embedding.table.row_limits import RowUsage
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError
from tests.rows import pulled, read


def _table(**limits):
    return Table(TableConfig("t", (2,), (0.5,), "sgd", seed=3, **limits))


def _advance(table, step):
    """As a store does it."""
    table.advance(step)
    stop = table.expire()
    while stop is not None:
        stop = table.expire(stop)


def _train(table, keys, step=None):
    if step is not None:
        _advance(table, step)
    slots = table.find_or_create(np.array(keys))
    table.apply_gradients(slots, [np.ones((len(keys), 2), np.float32)], 1.0)
    return slots


def _keys(table):
    return sorted(key for key in table.keys.tolist() if key)


def test_new_rows_reuse_the_slots_of_removed_rows_with_new_versions(tmp_path):
    table = _table()
    _train(table, [1, 2, 3])
    assert table.remove(np.array([1, 3, 99])) == 2
    assert _keys(table) == [2]
    slots = table.find_or_create(np.array([4, 5, 6]))
    assert sorted(slots.tolist()) == [0, 2, 3]
    np.testing.assert_array_equal(table.stored[slots], table.initial_rows(np.array([4, 5, 6])))
    store = LocalStore()
    store.create_table(TableConfig("t", (2,), (0.5,), "sgd", seed=3))
    both, ones = np.array([5, 6]), np.ones((2, 2), np.float32)
    known = store.sync("t", both, ones, "w", 1).versions  # One push, so both rows have one version.
    store.tables["t"].remove(both)
    store.sync("t", both[:1], ones[:1], "w", 2)
    answer = store.sync("t", both[1:], ones[:1], "w", 3, known[1:])
    assert answer.positions.tolist() == [0]
    np.testing.assert_array_equal(answer.rows, store.tables["t"].initial_rows(both[1:]) + 1)


def test_a_key_gets_a_row_when_it_comes_for_the_nth_time():
    table = _table(min_frequency=3)
    for time in (1, 2):
        assert _train(table, [7, time + 10]).tolist() == [-1, -1]
        assert (len(table), table.counters.refused) == (0, 2 * time)
    _train(table, [7, 13])
    assert (_keys(table), table.counters.created, table.counters.admitted) == ([7], 1, 1)
    np.testing.assert_array_equal(table.stored[:1], table.initial_rows(np.array([7])) - 1)


def test_a_push_of_a_key_that_is_not_admitted_is_dropped():
    store = LocalStore()
    store.create_table(TableConfig("t", (2,), (0.5,), "sgd", seed=3, min_frequency=2))
    keys, ones = np.array([5]), np.ones((1, 2), np.float32)
    initial = store.tables["t"].initial_rows(keys)
    absent = np.zeros(1, np.uint32)  # What a worker knows who made the row for itself.
    refused = store.sync("t", keys, ones, "w", 1, absent)
    assert (refused.versions.tolist(), refused.positions.tolist()) == ([0], [0])
    np.testing.assert_array_equal(refused.rows, initial)
    admitted = store.sync("t", keys, ones, "w", 2, absent)
    assert len(admitted.positions) == 0
    np.testing.assert_array_equal(pulled(store, "t", keys), initial + 1)
    stats = store.stats()["tables"]["t"]
    assert (stats["rows"], stats["created"], stats["admitted"], stats["evicted"], stats["refused"]) == (1, 1, 1, 0, 1)


def test_the_counting_filter_never_counts_too_little():
    admission, rng = Admission(3, width=1 << 12), np.random.default_rng(0)
    seen = {}
    for _ in range(3):
        keys = rng.permutation(np.arange(1, 1001))
        for key, admitted in zip(keys.tolist(), admission.admit(keys).tolist(), strict=True):
            seen[key] = seen.get(key, 0) + 1
            assert admitted or seen[key] < 3
    few = Admission(3, width=1 << 12)
    assert np.count_nonzero(few.admit(np.arange(1, 401))) == 0
    assert np.count_nonzero(few.admit(np.arange(1, 401))) < 10


def _counted(directory, times, shards=1):
    """Returns stores and files of a table whose keys 1 to 9 were seen `times` times; a key seen 3 times has a row."""
    stores = [LocalStore() for _ in range(shards)]
    for shard, store in enumerate(stores):
        store.take_place(shard, shards)
        store.create_table(TableConfig("t", (2,), (0.5,), "sgd", seed=3, min_frequency=3))
        for sequence in range(times):
            keys = np.array([key for key in range(1, 10) if key % shards == shard])
            store.sync("t", keys, np.ones((len(keys), 2), np.float32), "w", sequence)
    files = [[*store.saving(directory, 1, None, "first")][-1] for store in stores]
    return stores, [file for part in files for file in part]


@pytest.mark.parametrize("shards", [1, 3])
def test_counts_survive_a_restart_with_another_number_of_shards(tmp_path, shards):
    _, files = _counted(tmp_path, 2, shards)
    store, keys, ones = LocalStore(), np.arange(1, 10), np.ones((9, 2), np.float32)
    store.restore(tmp_path, files)
    assert store.tables["t"].limits.admission.counts()[1] == max(2 * len(keys) // shards, 1)
    store.sync("t", np.append(keys, 50), np.ones((10, 2), np.float32), "w", 9)
    assert _keys(store.tables["t"]) == keys.tolist()
    np.testing.assert_array_equal(pulled(store, "t", keys), store.tables["t"].initial_rows(keys) + ones)


def test_a_delta_has_the_latest_counts_and_altered_counts_are_refused(tmp_path):
    (store,), files = _counted(tmp_path, 1)
    keys, ones = np.arange(1, 10), np.ones((9, 2), np.float32)
    store.sync("t", keys, ones, "w", 7)
    files += store.save(tmp_path, 2, "first")
    other = LocalStore()
    other.restore(tmp_path, files)
    assert _keys(other.tables["t"]) == []
    other.sync("t", keys, ones, "w", 0)
    assert _keys(other.tables["t"]) == keys.tolist()
    _, files = _counted(tmp_path / "altered", 2)
    (name,) = [file["file"] for file in files if file["kind"] == "counts"]
    path = tmp_path / "altered" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: checksum"):
        LocalStore().restore(path.parent, files)


def test_the_shards_of_a_table_share_its_max_rows():
    config = TableConfig("t", (2,), (0.5,), "sgd", max_rows=11)
    assert [config.most_rows(shard, 4) for shard in range(4)] == [3, 3, 3, 2]
    assert [TableConfig("t", (2,), (0.5,), max_rows=1).most_rows(shard, 2) for shard in range(2)] == [1, 1]
    assert TableConfig("t", (2,), (0.5,)).most_rows(1, 2) == 0
    for shard, most in enumerate([3, 3, 3, 2]):
        store = LocalStore()
        store.take_place(shard, 4)
        store.create_table(config)
        store.sync("t", np.arange(1, 100), np.ones((99, 2), np.float32), "w", 1)
        assert len(store.tables["t"]) == most


def test_lru_evicts_the_oldest_rows_and_lfu_the_least_trained():
    table = _table(max_rows=4, eviction="lru")
    for step, keys in enumerate([[1, 2], [3], [4], [1]], start=1):
        _train(table, keys, step)
    _train(table, [5], 5)
    assert _keys(table) == [1, 3, 4, 5]
    _train(table, [6], 6)
    assert (_keys(table), table.counters.evicted, table.counters.created) == ([1, 4, 5, 6], 2, 6)
    table = _table(max_rows=3, eviction="lfu")
    for keys in [[1, 2, 3], [1, 2, 3], [1, 3]]:
        _train(table, keys)
    _train(table, [4])
    assert _keys(table) == [1, 3, 4]
    _train(table, [5])
    assert _keys(table) == [1, 3, 5]


def test_rows_of_a_batch_stay_and_keys_without_room_read_initial_rows():
    table, keys = _table(max_rows=3), np.array([1, 2, 3, 4, 5])
    _train(table, [1, 2])
    rows = TableRows(table)
    slots = rows.find_or_create(keys)
    assert _keys(table) == [1, 2, 3]
    assert slots.tolist() == [0, 1, 2, -1, -1]
    initial = table.initial_rows(keys)
    expected = initial - np.float32([[1], [1], [0], [0], [0]])
    np.testing.assert_array_equal(rows.read(keys, slots, create=True), expected)
    np.testing.assert_array_equal(rows.read(keys, slots)[3:], np.zeros((2, 2)))
    rows.apply_gradients(keys, slots, [np.ones((5, 2), np.float32)], 1.0)
    np.testing.assert_array_equal(read(table, keys), expected - np.float32([[1], [1], [1], [0], [0]]))


@pytest.mark.parametrize("scanned, found", [(1, 1), (2, 1 << 16), (1 << 22, 1)])
def test_ttl_evicts_rows_not_trained_for_longer(scanned, found, monkeypatch):
    monkeypatch.setattr(row_limits, "_SCANNED", scanned)
    monkeypatch.setattr(row_limits, "_EXPIRED", found)
    table = _table(ttl_steps=10)
    _train(table, [1, 2], 5)
    _train(table, [2], 12)
    _advance(table, 15)
    assert _keys(table) == [1, 2]
    _advance(table, 16)
    assert _keys(table) == [2]
    assert table.counters.evicted == 1
    _advance(table, 100)
    assert _keys(table) == []


@pytest.mark.parametrize("count", [700, 200_000, 260_000])  # Within one region of buckets, and while they grow.
def test_a_sample_of_the_index_is_the_keys_of_some_ranges_of_hashes(count):
    keys = np.random.default_rng(count).integers(1, 2**62, count)
    index, other = Index(), Index()
    index.find_or_add(keys)
    other.find_or_add(keys[::-1].copy())
    for share in (0.0, 0.01, 0.4, 1.0):
        for origin in (-3, 7, 2**63 - 1):
            sample = index.keys[index.sample(origin, share)]
            ranges = max(int(share * count) // 16, 1) if share < 1 else 1
            start, distance = int(mix(np.uint64(origin % 2**64))) % 2**32, 2**32 // ranges
            after = [(int(mix(np.uint64(key))) // 2**32 - start) % 2**32 for key in keys[:700]]
            width = int(share * 2**32) // ranges
            expected = [here // distance < ranges and here % distance < width for here in after]
            np.testing.assert_array_equal(np.isin(keys[:700], sample), expected)
            np.testing.assert_array_equal(np.sort(sample), np.sort(other.keys[other.sample(origin, share)]))
            assert len(sample) == len(np.unique(sample)) == pytest.approx(share * count, abs=5 * count**0.5)


def _filled(keys):
    """Returns a table whose 100,000 rows were last trained at the steps 1 to 100, depending on their keys."""
    table = _table(max_rows=100_000, eviction="lru")
    table.find_or_create(keys)
    for step in range(1, 101):
        table.advance(step)
        table.before_change(table.find(np.arange(1000 * (step - 1) + 1, 1000 * step + 1)))
    return table


def test_a_large_table_evicts_of_a_sample_the_same_rows_whatever_their_slots():
    keys = np.arange(1, 100_001)
    tables = [_filled(keys), _filled(keys[::-1].copy())]
    new = np.arange(1_000_001, 1_002_001)
    for table in tables:
        _train(table, new, 101)
    gone = [np.setdiff1d(keys, table.keys) for table in tables]
    np.testing.assert_array_equal(*gone)
    # 2,000 of a sample of about 16,000, and those the oldest: of the first eighth of all, but for the sample's chance.
    assert (len(gone[0]), len(tables[0])) == (2000, 100_000)
    assert gone[0].max() <= 14_000


def test_room_is_made_also_where_nearly_all_rows_are_of_the_batch_at_hand():
    table = _filled(np.arange(1, 100_001))
    _train(table, np.append(np.arange(1, 99_991), np.arange(1_000_001, 1_000_021)), 101)
    assert len(table) == 100_000
    assert (table.find(np.arange(1, 99_991)) >= 0).all()
    assert np.count_nonzero(table.find(np.arange(1_000_001, 1_000_021)) >= 0) == 10


def test_the_coldest_rows_are_those_with_the_fewest_trainings_for_their_age():
    usage, keys = RowUsage(TableMemory()), np.arange(1, 100_001)
    usage.created(keys - 1, len(keys))
    usage.step = 1000
    rng = np.random.default_rng(0)
    last, frequency = rng.integers(1, 1000, len(keys)), rng.integers(0, 50, len(keys))
    usage.set(keys - 1, last.astype(np.uint32), frequency.astype(np.uint32))
    keys[::7] = 0  # Free slots.
    protected, rates = np.arange(-1, 20_000), (frequency + 1) / (1000 - last + 100)
    free = np.flatnonzero(keys[20_000:]) + 20_000
    for _ in range(3):  # The hand stops elsewhere each time.
        chosen = usage.coldest(keys, 1000, protected)
        assert len({*chosen.tolist()}) == 1000 and np.isin(chosen, free).all()
        assert rates[chosen].max() < np.quantile(rates[free], 0.03)
    assert usage.coldest(keys, 99_000, protected).size == free.size
    assert usage.coldest(keys, 10, np.arange(len(keys))).size == 0
    assert usage.coldest(keys[:0], 10, protected).size == 0


def test_evictions_leave_clusters_of_the_index_short():
    table, rng = _table(max_rows=200_000, eviction="lfu"), np.random.default_rng(1)
    for _ in range(300):
        table.find_or_create(rng.integers(1, 2**62, 2000))
    used = np.append(table._index._buckets != 0, False)
    assert np.diff(np.flatnonzero(~used)).max() < 500


@pytest.mark.slow
@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_two_million_new_keys_stay_under_the_bound(eviction):
    store, most = LocalStore(), 200_000
    store.create_table(TableConfig("t", (16,), (0.1,), "rowwise_adagrad", max_rows=most, eviction=eviction))
    table, hot, files = store.tables["t"], np.arange(1, 1001), 0
    for block in range(100):
        keys = np.concatenate([hot, np.arange(20_000) + 1_000_000 + 20_000 * block])
        store.sync("t", keys, np.ones((len(keys), 17), np.float32), "w", block + 1)
        store.advance(block)
        assert len(table) <= most
        files = max(files, len(table.keys))
    assert table.counters.created - table.counters.evicted == len(table)
    assert table.counters.created == 2_001_000
    assert files <= most
    # 17 floats, 8 of use, and at most 20 of key and index for each row, and a free list no longer than the rows.
    assert table.nbytes <= most * (17 * 4 + 8 + 20 + 8)
    assert (table.find(hot) >= 0).all()
