"""Rows of a table under SGD at the rate 1, so that what they lose is the step's gradient."""

import numpy as np
import pytest

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.worker_rows import RowStep, TableRows, weighed
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker import merging
from ctr_trainer.embedding.worker.row_cache import RowCache
from ctr_trainer.estimator.table_inputs import RowGradients, TableGradients
from ctr_trainer.settings.optimizers import RowAdagrad


def _table(**limits):
    return Table(TableConfig("t", (2, 1), (0.0, 0.0), "sgd", 1, **limits))


def _batch(table, keys, values):
    """Returns the gradients [v, v] and [v] for the two segments of each key."""
    keys, values = np.array(keys, np.int64), np.array(values, np.float32)[:, None]
    return [TableGradients(TableRows(table), keys, table.find_or_create(keys), [np.repeat(values, 2, 1), values])]


def _step(table, gradients, scale=1.0):
    for part in gradients.take(RowStep(1.0, scale)):
        table.apply_gradients(part.slots, part.sums, 1.0)


def _rows(table, *keys):
    return table.read(np.array(keys, np.int64)).tolist()


def test_micro_batches_are_summed_by_key_with_their_weights_and_scaled():
    table, gradients = _table(), RowGradients(1.0)
    gradients.add(_batch(table, [1, 2], [1.0, 2.0]), weight=3.0)
    gradients.add(_batch(table, [2, 3], [4.0, 8.0]), weight=1.0)
    _step(table, gradients, scale=0.5)
    assert _rows(table, 1, 2, 3) == [[-1.5] * 3, [-5.0] * 3, [-4.0] * 3]
    gradients.add(_batch(table, [1], [1.0]))
    _step(table, gradients)
    assert _rows(table, 1, 2) == [[-2.5] * 3, [-5.0] * 3]  # it started anew


def test_a_gradient_counts_its_weight_its_share_and_its_merge_factor():
    gradient = np.float32([[1, -2]])
    assert weighed(gradient, weight=4.0, share=0.5, merge_factor=3.0).tolist() == [[6, -12]]
    assert weighed(gradient, weight=4.0, share=0.25, merge_factor=1.0) is gradient  # No pass over it for a factor of 1.


def test_l2_is_of_each_distinct_row_once():
    table, gradients = _table(), RowGradients(1.0, l2=0.1)
    table.find_or_insert(np.array([1, 2]), np.array([[1, 2, 3], [4, 5, 6]], np.float32))
    gradients.add(_batch(table, [1], [0.0]))
    gradients.add(_batch(table, [1], [0.0]))
    _step(table, gradients)
    np.testing.assert_allclose(_rows(table, 1, 2), [[0.9, 1.8, 2.7], [4, 5, 6]], rtol=1e-6)


@pytest.mark.parametrize(("merge", "always", "once"), [("adaptive", 0.25, 1), ("mean", 1, 4)])
def test_l2_counts_against_a_rows_data_as_with_one_worker_that_has_the_batches_of_all_four(merge, always, once):
    """Beside a quarter of the gradient of each batch, or with `mean` beside all of it."""
    config, store = TableConfig("t", (1,), (0.0,), RowAdagrad(initial_accumulator=1e12)), LocalStore()
    cache = RowCache(store, config, "a", shares=merging.shares(config, merge, 4))
    for keys in ([1, 2], [1], [1]):
        slots = cache.find_or_create(np.array(keys))
        cache.apply_gradients(slots, [np.zeros((len(keys), 1), np.float32)], 1.0)
    store.push("t", np.array([1, 2]), np.float32([[8, 0], [8, 0]]), "another", 1)
    cache.sync()
    slots, gradients = cache.find_or_create(np.array([1, 2])), RowGradients(1.0, l2=0.5)
    gradients.add([TableGradients(cache, np.array([1, 2]), slots, [np.float32([[3], [3]])])])
    (part,) = gradients.take(RowStep(1.0))
    assert part.sums[0].tolist() == [[3 + 0.5 * 8 * always], [3 + 0.5 * 8 * once]]


def test_clipping_is_by_the_norm_over_all_rows():
    table, gradients = _table(), RowGradients(1.0, clip_norm=1.0)
    gradients.add(_batch(table, [1, 2], [2.0, 1.0]))  # 3 * 4 + 3 * 1 = 15
    _step(table, gradients)
    norm = 15**0.5
    np.testing.assert_allclose(_rows(table, 1, 2), [[-2 / norm] * 3, [-1 / norm] * 3], rtol=1e-6)
    before = _rows(table, 1)
    gradients.add(_batch(table, [1], [0.5]))
    _step(table, gradients)
    np.testing.assert_allclose(_rows(table, 1), np.array(before) - 0.5, rtol=1e-6)


def test_a_row_evicted_within_the_step_takes_no_other_rows_slot():
    table, gradients = _table(max_rows=1), RowGradients(1.0)
    gradients.add(_batch(table, [1], [1.0]))
    gradients.add(_batch(table, [2], [8.0]))
    _step(table, gradients)
    assert _rows(table, 2) == [[-8.0] * 3]
    assert len(table) == 1
