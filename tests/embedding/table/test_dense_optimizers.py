"""Dense optimizers of rows: a row that is caught up equals, to 1e-6, the row of a table that is stepped whole."""

import numpy as np
import pytest

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.worker_rows import StepHistory, TableRows
from ctr_trainer.embedding.table import missed_steps
from ctr_trainer.embedding.table.row_space import InitialRows
from ctr_trainer.embedding.table.sparse_optimizers import OPTIMIZERS
from ctr_trainer.embedding.table.table_config import TableConfig
from tests.row_optimizers import row_optimizer
from tests.rows import pulled

DIMS, KEYS, STEPS = (4, 1), np.arange(1, 31), 300
DENSE = ("dense_sgd", "dense_adagrad", "dense_adam")


def _rate(step):
    return 0.01 if step < 150 else 0.001 * (1 + step % 3)  # A plateau, then a rate that changes at each step.


def _batches(steps, most=8):
    """Yields (keys, gradients) of each step: some keys at every other step, some once, one never before step 200."""
    draws = np.random.default_rng(5)
    for step in range(steps):
        often = draws.choice(KEYS[:10], draws.integers(0, 5), replace=False)
        seldom = draws.choice(KEYS[10:29], draws.integers(0, most - 5), replace=False) if step % 17 == 0 else KEYS[:0]
        late = KEYS[29:] if step in (200, 250) else KEYS[:0]
        keys = np.concatenate([often, seldom, late])
        yield keys, [draws.normal(size=(len(keys), dim)).astype(np.float32) for dim in DIMS]


def _rows(optimizer, l2, first=0, store=None):
    config = TableConfig("t", DIMS, (0.1, 0.05), row_optimizer(optimizer), seed=3)
    store = store or LocalStore()
    store.create_table(config)
    rows = TableRows(store.tables["t"])
    rows.follow_steps(StepHistory(first, l2))
    return store, rows


def _train(rows, batches, l2, first=0):
    for step, (keys, gradients) in enumerate(batches, start=first):
        slots = rows.find_or_create(keys)
        weights = rows.take(slots)
        parts = np.split(weights, np.cumsum(DIMS)[:-1], axis=1)
        regularized = [g + np.float32(l2) * w for g, w in zip(gradients, parts, strict=True)]
        rows.apply_gradients(keys, slots, regularized, _rate(step))


class Dense:
    """The whole table as an array float64[n, dims], stepped at each step as PyTorch steps `nn.Embedding` weights."""

    def __init__(self, optimizer, weights, l2):
        self._step, self.w, self._l2 = getattr(self, f"_{optimizer}"), weights.astype(np.float64), l2
        self._m, self._v, self._acc, self._t = np.zeros_like(self.w), np.zeros_like(self.w), 1e-4, 0

    def step(self, keys, gradients, rate):
        gradient = self._l2 * self.w
        gradient[keys - 1] += np.concatenate(gradients, 1)
        self._t += 1
        self._step(gradient, rate)

    def _dense_sgd(self, g, rate):
        self.w -= rate * g

    def _dense_adagrad(self, g, rate):
        self._acc = self._acc + g * g
        self.w -= rate * g / np.sqrt(self._acc)

    def _dense_adam(self, g, rate):
        self._m = 0.9 * self._m + 0.1 * g
        self._v = 0.999 * self._v + 0.001 * g * g
        mean, square = self._m / (1 - 0.9**self._t), self._v / (1 - 0.999**self._t)
        self.w -= rate * mean / (np.sqrt(square) + 1e-8)


def _dense(optimizer, store, l2, steps=STEPS):
    dense = Dense(optimizer, pulled(store, "t", KEYS)[:, : sum(DIMS)], l2)
    for step, batch in enumerate(_batches(steps)):
        dense.step(*batch, _rate(step))
    return dense.w


@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize("optimizer", DENSE)
def test_every_row_equals_the_row_of_a_table_that_is_stepped_whole(optimizer, l2):
    store, rows = _rows(optimizer, l2)
    expected = _dense(optimizer, store, l2)
    _train(rows, _batches(STEPS), l2)
    met = KEYS[rows.find(KEYS) >= 0]
    assert len(met) >= 20 and KEYS[29] in met
    behind = pulled(store, "t", met)[:, : sum(DIMS)]
    caught_up = rows.take(rows.find_or_create(KEYS[:5]))
    np.testing.assert_allclose(caught_up, expected[:5], atol=1e-6, rtol=0)  # A lookup catches its rows up.
    rows.catch_up()
    found = pulled(store, "t", met)[:, : sum(DIMS)]
    np.testing.assert_allclose(found, expected[met - 1], atol=1e-6, rtol=0)
    moves = l2 > 0 or optimizer == "dense_adam"
    assert (np.abs(behind - found).max() > 1e-5) == moves  # Before the flush some rows did lag behind.
    rows.catch_up()
    np.testing.assert_array_equal(pulled(store, "t", met)[:, : sum(DIMS)], found)  # All steps were made up for once.


def test_a_resumed_training_equals_one_that_was_not_interrupted(tmp_path):
    batches = list(_batches(STEPS))
    store, rows = _rows("dense_adam", 0.05)
    _train(rows, batches[:160], 0.05)
    rows.catch_up()
    files = store.save(tmp_path, 160)
    _train(rows, batches[160:], 0.05, first=160)
    rows.catch_up()
    again, resumed = _rows("dense_adam", 0.05, first=160)
    again.restore(tmp_path, files)
    _train(resumed, batches[160:], 0.05, first=160)
    resumed.catch_up()
    there = KEYS[:10]
    np.testing.assert_array_equal(pulled(again, "t", there), pulled(store, "t", there))


def test_more_missed_steps_than_are_made_up_for_leave_the_row_near_zero(monkeypatch):
    """Beyond `MOST_STEPS` a row stays where it is; the corrections of Adam still count all steps."""
    history = StepHistory(0, 0.05)
    for _ in range(missed_steps.MOST_STEPS + 5000):
        history.begin_step(0.001)
        history.end_step()
    store, rows = _rows("dense_adam", 0.05)
    rows.follow_steps(history)
    slots = rows.find_or_create(KEYS)
    assert np.abs(rows.take(slots)).max() < 0.01
    assert rows._table.stored[slots, -1].tolist() == [history.steps] * len(KEYS)
    np.testing.assert_allclose(rows._table.stored[slots, -2], 1 - 0.999**history.steps, rtol=1e-4)


@pytest.mark.parametrize("optimizer", DENSE)
def test_steps_that_no_float32_can_count_are_applied_once(optimizer):
    config, slots, caught_up = TableConfig("t", DIMS, (0.1, 0.05), row_optimizer(optimizer), seed=3), KEYS - 1, []
    states = OPTIMIZERS[optimizer].by_float(DIMS)
    clocks = [sum(DIMS) + place for place, state in enumerate(states) if state.name == "steps"]
    for first in (2**10 - 3, 2**24 - 3):
        history, rows = StepHistory(first, 0.05), InitialRows(config).of(KEYS)
        rows[:, clocks] = first
        for step in range(9):
            history.begin_step(0.01)
            history.end_step()
            if step != 4:
                history.catch_up(config, rows, slots, history.steps)
        before = rows.copy()
        history.catch_up(config, rows, slots, history.steps)
        np.testing.assert_array_equal(rows, before)
        caught_up.append(np.delete(rows, clocks, axis=1))
    np.testing.assert_array_equal(*caught_up)


def test_adam_without_l2_comes_to_rest_in_closed_form():
    history = StepHistory(0, 0.0)
    store, rows = _rows("dense_adam", 0.0)
    rows.follow_steps(history)
    rows.apply_gradients(KEYS[:1], rows.find_or_create(KEYS[:1]), [np.ones((1, dim), np.float32) for dim in DIMS], 0.01)
    dense = Dense("dense_adam", pulled(store, "t", KEYS)[:, : sum(DIMS)] * 0, 0.0)
    first = pulled(store, "t", KEYS[:1])[:, : sum(DIMS)]
    dense.step(KEYS[:1], [np.ones((1, dim)) for dim in DIMS], 0.01)
    for _ in range(20_000):
        history.begin_step(0.01)
        history.end_step()
        dense.step(KEYS[:0], [np.ones((0, dim)) for dim in DIMS], 0.01)
    rows.catch_up()
    (found,) = pulled(store, "t", KEYS[:1])
    np.testing.assert_allclose(found[: sum(DIMS)] - first[0], dense.w[0] + 0.01, atol=1e-6)
    np.testing.assert_allclose(found[9:13], dense._v[0, :4], rtol=1e-3)


def test_lazy_rows_do_not_equal_the_table_that_is_stepped_whole():
    store, _ = _rows("dense_adam", 0.05)
    expected = _dense("dense_adam", store, 0.05)
    lazy = LocalStore()
    lazy.create_table(TableConfig("t", DIMS, (0.1, 0.05), row_optimizer("adam"), seed=3))
    _train(TableRows(lazy.tables["t"]), _batches(STEPS), 0.05)
    assert np.abs(pulled(lazy, "t", KEYS[:10])[:, : sum(DIMS)] - expected[:10]).max() > 0.01
