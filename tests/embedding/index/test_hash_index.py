"""The hash index, and the numbers of distinct keys."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.index.key_kernels import DistinctKeys, distinct, mix, positions_of

_BITS = 2**64 - 1


def _key_of(hashed):
    """Returns the key, an int64, for which `mix` returns `hashed`."""
    value = hashed
    for shift, factor in ((31, 0x94D049BB133111EB), (27, 0xBF58476D1CE4E5B9), (30, 1)):
        mixed = value
        for _ in range(2):  # Each round makes `shift` more of the bits right, from the highest on.
            value = mixed ^ (value >> shift)
        value = value * pow(factor, -1, 2**64) & _BITS
    return np.uint64((value - 0x9E3779B97F4A7C15) & _BITS).astype(np.int64)


def _index_that_grows():
    """Returns (Index of which only some entries have been moved to the larger buckets, its keys)."""
    rng, index, keys = np.random.default_rng(0), Index(), np.empty(0, np.int64)
    while not 0 < index._moved < len(index._old):
        keys = np.append(keys, rng.integers(1, 2**63, 300))
        index.find_or_add(keys[-300:])
    return index, keys


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3000)), max_size=12), st.integers(0, 2**32))
def test_an_index_is_a_dict_while_keys_come_and_go(steps, seed):
    rng, index, expected = np.random.default_rng(seed), Index(), {}
    pool = rng.permutation(np.arange(-6000, 6000))
    for adds, count in steps:
        keys = rng.choice(pool, count, replace=False)
        if adds:
            expected.update(zip(keys[keys != 0].tolist(), index.find_or_add(keys)[keys != 0].tolist(), strict=True))
        else:
            assert index.remove(keys).tolist() == [expected.pop(key, -1) for key in keys.tolist()]
        assert len(index) == len(expected) == len(set(expected.values()))
        assert {slot: key for key, slot in expected.items()} == {i: k for i, k in enumerate(index.keys.tolist()) if k}
        np.testing.assert_array_equal(index.find(pool), [expected.get(key, -1) for key in pool.tolist()])


def test_each_key_that_comes_moves_a_few_entries_so_no_call_waits_for_all():
    index, keys = _index_that_grows()
    before = index._moved
    index.find_or_add(np.array([17], np.int64))
    assert 24 <= index._moved - before < 124  # 24 and the rest of the last one's cluster
    np.testing.assert_array_equal(index.find(keys), np.arange(len(keys)))


def test_no_call_moves_all_entries_whatever_the_keys():
    moved_at_once = []
    for seed in range(40):
        rng, index = np.random.default_rng(seed), Index()
        while len(index) < 200_000:
            keys, before = rng.integers(1, 2**62, 500), index._moved
            growing = len(index._old)
            index.find_or_add(keys)
            after = index._moved if len(index._old) == growing else growing
            if growing > 100_000 and after - before > 100 * len(keys):
                moved_at_once.append((seed, growing, after - before))
    assert moved_at_once == []


def test_keys_of_the_last_bucket_wrap_to_the_first_during_growth():
    index, keys = _index_that_grows()
    last = np.array([_key_of(0xFFFFFFFF00000000 + i) for i in range(400)])
    assert mix(last[7].astype(np.uint64)) == 0xFFFFFFFF00000007
    slots = index.find_or_add(last)
    np.testing.assert_array_equal(slots, len(keys) + np.arange(400))
    np.testing.assert_array_equal(index.find(np.append(keys, last)), np.arange(len(keys) + 400))
    np.testing.assert_array_equal(index.remove(last[::2].copy()), slots[::2])
    np.testing.assert_array_equal(index.find(last), np.where(np.arange(400) % 2, slots, -1))


@pytest.mark.parametrize("is_growing", [False, True])
def test_a_reserved_index_keeps_its_keys_and_does_not_grow_for_the_next(is_growing):
    index, keys = _index_that_grows() if is_growing else (Index(), np.empty(0, np.int64))
    index.reserve(50_000)
    buckets, new = len(index._buckets), np.arange(-50_000 + len(keys), 0)
    assert not len(index._old)
    index.find_or_add(new)
    assert len(index._buckets) == buckets
    np.testing.assert_array_equal(index.find(np.append(keys, new)), np.arange(50_000))


def test_cleared_while_it_grows_an_index_begins_anew():
    index, keys = _index_that_grows()
    index.clear()
    assert (index.find(keys) == -1).all()
    np.testing.assert_array_equal(index.find_or_add(keys[::-1].copy()), np.arange(len(keys)))


@pytest.mark.parametrize("most_distinct", [1, 3, 500, 2**62])
def test_numbers_are_those_of_a_dict(most_distinct):
    rng, expected = np.random.default_rng(0), {}
    parts = [rng.integers(-most_distinct, most_distinct, n) for n in (0, 1, 2000, 700)]
    found = DistinctKeys(sum(map(len, parts)))
    for part in parts:
        numbers = [expected.setdefault(key, len(expected)) if key else -1 for key in part.tolist()]
        assert found.numbers(part).tolist() == numbers
    assert found.keys.tolist() == list(expected)
    found = DistinctKeys(2)
    assert found.numbers(np.zeros(2, np.int64)).tolist() == [-1, -1]
    assert DistinctKeys(0).keys.tolist() == []
    keys = np.arange(1, 4097) << 40
    assert DistinctKeys(len(keys)).numbers(keys).tolist() == list(range(4096))


def test_distinct_keys_are_in_order_of_appearance():
    assert distinct([np.array([5, 0, 7]), np.array([7, 3, 5])]).tolist() == [5, 7, 3]
    assert positions_of(np.array([9, 4, 2]), np.array([2, 9, 9])).tolist() == [2, 0, 0]
