"""What an epoch of a publication takes from a table, as a reader of all epochs sees it."""

import dataclasses

import numpy as np
import pytest

from ctr_trainer.embedding.table import changes
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.system.messages.errors import UserError
from tests.embedding.table import shared_worker as worker

CONFIG = TableConfig("dim2", (2,), (0.5,), optimizer="sgd", seed=7)


@pytest.fixture(autouse=True)
def three_rows_a_block(monkeypatch):
    monkeypatch.setattr(changes, "_BLOCK_BYTES", 3 * (CONFIG.weights * 4 + 8))


def _table(**limits):
    table = Table(dataclasses.replace(CONFIG, **limits), True)
    table.keep_published()
    return table


def _step(table, *keys):
    keys = np.array(keys, np.int64)
    table.apply_gradients(table.find_or_create(keys), [np.ones((len(keys), 2), np.float32)], 1.0)


def _remove(table, *keys):
    table.remove(np.array(keys, np.int64))


class Reader:
    """Applies epochs in order, as a server does.

    Attributes:
      rows: dict of key -> row, the state after the last epoch.
    """

    def __init__(self):
        self.rows, self.epoch = {}, None

    def read(self, table, between=lambda: None, fail=False):
        """Returns (keys of rows, removed keys) of an epoch that it takes; `between` is called after each block."""
        epoch = 0 if self.epoch is None else self.epoch + 1
        with table.lock.alone():
            taking = table.published.begin_epoch(table, epoch, self.epoch)
        rows = {}
        while True:
            with table.lock.alone():
                block = taking.read(table)
            if block is None:
                break
            for key, row in zip(block[0].tolist(), block[1].tolist(), strict=True):
                assert key not in rows and key != 0
                rows[key] = row
            between()
        removed = taking.removed.tolist()
        assert not set(removed) & set(rows)
        if not fail:
            self.epoch = epoch
            self.rows = {key: row for key, row in (self.rows | rows).items() if key not in removed}
        return sorted(rows), removed


def _once(change):
    """Returns a function whose first call makes the change."""
    changes = iter([change])
    return lambda: next(changes, lambda: None)()


def _all(table):
    weights = table.stored[:, : CONFIG.weights].tolist()
    return {key: row for key, row in zip(table.keys.tolist(), weights, strict=False) if key}


def test_an_epoch_has_the_changed_rows_and_the_removed_keys():
    table, reader = _table(), Reader()
    _step(table, 1, 2, 3, 4, 5, 6, 7)
    assert reader.read(table) == ([1, 2, 3, 4, 5, 6, 7], [])
    assert reader.read(table) == ([], [])
    _step(table, 2, 8)
    _remove(table, 3, 5)
    assert reader.read(table) == ([2, 8], [3, 5])
    assert reader.rows == _all(table) and len(reader.rows) == 6
    _step(table, 9)
    _remove(table, 9)
    assert reader.read(table) == ([], [])


def test_a_row_that_changes_while_an_epoch_is_taken_is_in_the_next_one_too():
    table, reader = _table(), Reader()
    _step(table, *range(1, 10))
    reader.read(table, _once(lambda: _step(table, 1, 9)))
    assert reader.read(table) == ([1, 9], [])  # Also 9, whose block had not been read.
    assert reader.rows == _all(table)


def test_a_key_that_goes_and_comes_back_while_its_epoch_is_taken_is_in_it_once():
    table, reader = _table(), Reader()
    _step(table, *range(1, 10))

    def back():
        _remove(table, 1, 9)
        _step(table, 1)  # In the slot of 9, which is still to be read.

    assert reader.read(table, _once(back)) == (list(range(1, 9)), [])
    assert reader.read(table) == ([1], [9])
    assert reader.read(table) == ([], [])
    assert reader.rows == _all(table)


def test_an_epoch_or_a_base_that_was_not_published_is_taken_again():
    table, reader = _table(), Reader()
    _step(table, 1, 2, 3, 4)
    reader.read(table)
    _step(table, 1, 5)
    _remove(table, 2, 3)
    assert reader.read(table, fail=True) == ([1, 5], [2, 3])
    _step(table, 3)
    _remove(table, 4)
    assert reader.read(table, fail=True) == ([1, 3, 5], [2, 4])
    _remove(table, 3)
    assert reader.read(table) == ([1, 5], [2, 3, 4])
    assert reader.rows == _all(table)
    table, reader = _table(), Reader()
    _step(table, 1, 2, 3, 4)
    reader.read(table, fail=True)
    _remove(table, 2)
    assert reader.read(table) == ([1, 3, 4], [])


def test_an_epoch_follows_the_last_one_and_after_a_clear_only_a_base_does():
    table, reader = _table(), Reader()
    _step(table, 1)
    reader.read(table)
    table.clear()
    with pytest.raises(UserError, match="since epoch 0 is not known.*publish all rows"):
        reader.read(table)
    _step(table, 2)
    assert Reader().read(table) == ([2], [])
    table, reader = _table(), Reader()
    for _ in range(3):
        reader.read(table)
    reader.epoch = 0
    with pytest.raises(UserError, match="since epoch 0 is not known, the last epoch taken is 2"):
        reader.read(table)


def test_a_reader_of_all_epochs_has_the_table_whatever_came_went_or_failed():
    rng = np.random.default_rng(3)
    table, reader = _table(max_rows=60), Reader()

    def change():
        _step(table, *np.unique(rng.integers(1, 200, rng.integers(1, 12))))
        if rng.random() < 0.3:
            _remove(table, *np.unique(rng.integers(1, 200, 5)))

    for _ in range(300):
        change()
        reader.read(table, change if rng.random() < 0.5 else lambda: None, fail=rng.random() < 0.3)
    reader.read(table)
    assert reader.rows == _all(table) and len(reader.rows) > 20 and table.counters.evicted > 1000


def test_changes_of_another_process_are_published():
    rng = np.random.default_rng(3)
    memory, table = worker.open_table(config=worker.LIMITED)
    other = Table(worker.LIMITED, True, None, type(memory)(memory.address).under(worker.CONFIG.name))
    for each in (table, other):
        each.keep_published()
    reader = Reader()
    for number in range(40):
        for each in (table, other):
            _step(each, *np.unique(rng.integers(1, 2000, 100)))
        reader.read(table, lambda number=number: _step(other, number + 1), fail=number % 3 == 1)
    reader.read(table)
    assert reader.rows == _all(table) and len(reader.rows) > 600
