import numpy as np
import pytest

from ctr_trainer.embedding.index.key_kernels import DistinctKeys, distinct, positions_of


@pytest.mark.parametrize("most_distinct", [1, 3, 500, 2**62])
def test_numbers_are_those_of_a_dict(most_distinct):
    rng, expected = np.random.default_rng(0), {}
    parts = [rng.integers(-most_distinct, most_distinct, n) for n in (0, 1, 2000, 700)]
    found = DistinctKeys(sum(map(len, parts)))
    for part in parts:
        numbers = [expected.setdefault(key, len(expected)) if key else -1 for key in part.tolist()]
        assert found.numbers(part).tolist() == numbers
    assert found.keys.tolist() == list(expected)


def test_a_table_of_distinct_keys_only_takes_them_all():
    keys = np.arange(1, 4097) << 40
    assert DistinctKeys(len(keys)).numbers(keys).tolist() == list(range(4096))


def test_no_key_has_no_number():
    found = DistinctKeys(2)
    assert found.numbers(np.zeros(2, np.int64)).tolist() == [-1, -1]
    assert DistinctKeys(0).keys.tolist() == []


def test_distinct_keys_of_several_parts_are_in_the_order_of_their_appearance():
    assert distinct([np.array([5, 0, 7]), np.array([7, 3, 5])]).tolist() == [5, 7, 3]


def test_positions_are_those_among_the_unique_keys():
    assert positions_of(np.array([9, 4, 2]), np.array([2, 9, 9])).tolist() == [2, 0, 0]
