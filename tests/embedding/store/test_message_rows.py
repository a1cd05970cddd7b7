"""Rows as they lie in a message: at any byte, and checked by their bits."""

import numpy as np
import pytest

from ctr_trainer.embedding.index.hash_index import Index
from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.table import row_kernels
from ctr_trainer.embedding.table.table_config import TableConfig

CONFIG = TableConfig("t", (2, 1), (0.0, 0.0), "sgd")


def _at_an_odd_byte(rows):
    raw = np.zeros(rows.nbytes + 1, np.uint8)
    out = raw[1:].view(rows.dtype).reshape(rows.shape)
    out[:] = rows
    assert not out.flags.aligned
    return out


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, -np.nan])
@pytest.mark.parametrize("row", [0, 2047, 2999])
def test_the_first_row_that_is_not_finite_is_found_wherever_it_lies(bad, row):
    rows = np.full((3000, 3), np.finfo(np.float32).max)
    assert row_kernels.first_not_finite(rows) == -1
    rows[row:, 2] = bad
    assert row_kernels.first_not_finite(_at_an_odd_byte(rows)) == row


def test_of_no_rows_none_is_not_finite():
    assert row_kernels.first_not_finite(np.empty((0, 3), np.float32)) == -1


def test_deltas_at_an_odd_byte_are_added_as_others_are():
    store = LocalStore()
    store.create_table(CONFIG)
    keys, deltas = np.array([5, 7]), np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    store.sync("t", keys, _at_an_odd_byte(deltas), "a", 0, np.zeros(2, np.uint32))
    newer = store.sync("t", keys, _at_an_odd_byte(deltas), "b", 0, np.zeros(2, np.uint32))
    assert newer.rows.tolist() == [[2, 4, 6], [8, 10, 12]]
    store.push("t", keys, _at_an_odd_byte(deltas), "c", 0)
    assert store.pull("t", keys).tolist() == [[3, 6, 9], [12, 15, 18]]
    store.put("t", keys, _at_an_odd_byte(deltas), "c", 1)
    assert store.pull("t", keys).tolist() == deltas.tolist()


def test_an_index_too_large_for_the_cores_cache_gives_slots_in_the_order_of_the_keys():
    rng, index = np.random.default_rng(0), Index()
    keys = rng.permutation(np.arange(1, 400_001)) * np.int64(-7046029254386353131)
    for first in range(0, len(keys), 50_000):
        part = keys[max(first - 25_000, 0) : first + 50_000]  # Some are there, some are new.
        np.testing.assert_array_equal(index.find_or_add(part), np.arange(max(first - 25_000, 0), first + 50_000))
    np.testing.assert_array_equal(index.find_or_add(np.append(keys[:9], 0)), [*range(9), -1])
