"""The shares of keys that were never trained: what is counted, what training remembers, and when it warns."""

import dataclasses
import logging

import numpy as np
import pytest

from ctr_trainer.embedding.store.local_store import LocalStore
from ctr_trainer.embedding.store.store import StoreReader
from ctr_trainer.embedding.store.worker_rows import StepHistory, TableRows
from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig
from ctr_trainer.embedding.worker.lookup import Lookup
from ctr_trainer.embedding.worker.new_keys import NewKeys
from ctr_trainer.embedding.worker.row_copies import RowCopies
from tests.row_optimizers import row_optimizer

CONFIG = TableConfig("dim2", (2, 1), (0.1, 0.0))
FEATURES = ("user", "item", "tags", "history")


def _alone(counts, name):
    return counts


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch):
    monkeypatch.setattr(NewKeys, "_warned", set())


def _step(new_keys, rows, keys, features=("item",)):
    """Looks up keys as a step of a training does, and trains their rows."""
    lookup = Lookup(np.array(keys, np.int64)[:, None])
    is_due, slots = new_keys.begin_lookup(create=True), rows.find_or_create(lookup.unique)
    new_keys.look(features, rows, lookup, slots, is_due)
    gradients = [np.ones((len(slots), dim), np.float32) for dim in rows.config.dims]
    rows.apply_gradients(lookup.unique, slots, gradients, 0.1)


def test_each_value_counts_for_its_feature_and_a_missing_one_for_none():
    rows = TableRows(Table(CONFIG))
    rows.find_or_create(np.array([1, 2, 3]))
    bag = (np.array([1, 8, 8]), np.array([0, 1, 3], np.int32), "mean", None)
    history = (np.array([2, 9, 0]), np.array([0, 3, 3], np.int32), 4)  # It shares the slot of `item`.
    lookup = Lookup(np.array([[1, 9], [0, 2]]), [bag], [history])
    new_keys = NewKeys(FEATURES)
    new_keys.look(FEATURES, rows, lookup, rows.find(lookup.unique), True)
    found = new_keys.report(_alone)["new_keys"]
    assert {name: each["share"] for name, each in found.items()} == dict(user=0, item=0.5, tags=2 / 3, history=0.5)
    assert new_keys.line() == (
        "keys that were never trained (in training): tags 66.7% (unknown), item 50.0% (unknown), "
        "history 50.0% (unknown), user 0.0% (unknown)"
    )


def test_the_counts_of_all_ranks_are_added_up_and_a_window_begins_anew():
    new_keys = NewKeys(["user", "item"])
    new_keys.add(["item"], np.array([[1, 4]]))
    found = new_keys.report(lambda counts, name: counts + np.array([[0, 0], [2, 2]]))
    assert found == {"new_keys": {"item": {"share": 0.5, "in_training": None}}}
    new_keys.add(["item"], np.array([[0, 4]]))
    assert new_keys.report(_alone)["new_keys"]["item"]["share"] == 0
    assert NewKeys().report(lambda counts, name: pytest.fail("a collective")) == {}


@pytest.mark.parametrize("optimizer", ["adagrad", "dense_adagrad"])
def test_training_counts_rows_that_no_step_has_trained_and_remembers_the_latest(optimizer):
    table = Table(dataclasses.replace(CONFIG, optimizer=row_optimizer(optimizer)))
    rows, new_keys = TableRows(table), NewKeys(["item"], samples=True)
    if optimizer == "dense_adagrad":  # L2 moves the rows of each step, also new ones.
        rows.follow_steps(StepHistory(0, 0.1))
    _step(new_keys, rows, range(1, 101))
    _step(new_keys, rows, range(1, 101))
    assert new_keys.in_training == {"item": 1.0}
    _step(new_keys, rows, range(51, 151))
    assert new_keys.in_training["item"] == pytest.approx(0.8)
    _step(new_keys, rows, range(1, 101))
    assert new_keys.in_training["item"] == pytest.approx(0.8 * 0.8 + 0.2 * 0.5)


def test_the_first_lookups_and_one_in_sixteen_of_the_first_pass_are_counted():
    new_keys = NewKeys(["item"], samples=True)
    new_keys.limit = 60
    counted = [number for number in range(200) if new_keys.begin_lookup(create=True)]
    assert counted == [*range(16), 16, 32, 48]
    assert not any(NewKeys(["item"]).begin_lookup(create=True) for _ in range(20))
    new_keys = NewKeys(["item"])
    for _ in range(2):
        counted = [number for number in range(80) if new_keys.begin_lookup(create=False)]
        assert counted == [*range(64), 64, 68, 72, 76]
        new_keys.report(_alone)


def test_a_key_that_is_not_admitted_stays_new():
    rows, new_keys = TableRows(Table(dataclasses.replace(CONFIG, min_frequency=3))), NewKeys(["item"], samples=True)
    for _ in range(3):
        _step(new_keys, rows, range(1, 101))
    new_keys.begin_lookup(create=True)
    assert new_keys.shares == {"item": 1.0}
    _step(new_keys, rows, range(1, 101))
    new_keys.begin_lookup(create=True)
    assert new_keys.shares == {"item": 0.0}


def test_rows_of_a_service_are_known_also_if_their_weights_are_zeros():
    store, config = LocalStore(), dataclasses.replace(CONFIG, optimizer="adagrad")
    store.create_table(config)
    row = np.zeros((1, config.width), np.float32)
    row[:, config.weights :] = 0.5
    store.put("dim2", np.array([5]), row, "w", 0)
    assert (StoreReader(store, config).find(np.array([7, 5, 6])) >= 0).tolist() == [False, True, False]


def test_a_copy_of_a_services_row_is_no_new_key_to_the_training_that_pulls_it():
    store = LocalStore()
    store.create_table(CONFIG)
    store.sync("dim2", np.arange(1, 51), np.ones((50, CONFIG.width), np.float32), "other", 0)
    new_keys = NewKeys(["item"], samples=True)
    _step(new_keys, RowCopies(store, CONFIG, "w"), range(1, 101))
    new_keys.begin_lookup(create=True)
    assert new_keys.shares == {"item": 0.5}


@pytest.mark.parametrize(
    ("usual", "new", "keys", "warns"),
    [(0.02, 100, 100, True), (0.02, 40, 100, True), (0.02, 30, 100, False), (0.5, 100, 100, True), (1, 100, 100, False),
     (0.6, 70, 100, False), (0.02, 49, 49, False)],
)  # fmt: skip
def test_a_share_far_above_that_in_training_is_warned_of_once(caplog, usual, new, keys, warns):
    for _ in range(2):
        new_keys = NewKeys(["item"])
        new_keys.in_training, new_keys.forms = {"item": usual}, lambda name: ("77.0", "77")
        new_keys.add(["item"], np.array([[new, keys]]))
        with caplog.at_level(logging.WARNING):
            new_keys.report(_alone)
    text = (
        f"feature item: {new}% of its keys are new; values look like '77.0', in training like '77'. In training "
        f"{usual:.1%} were new. Only equal texts have equal keys: see docs/features.md, 'Equal values'"
    )
    assert caplog.messages == [text] * warns


@pytest.mark.parametrize("steps", [1, 30])
def test_a_stream_whose_producer_changes_its_values_is_warned_of(caplog, steps):
    rows, new_keys = TableRows(Table(CONFIG)), NewKeys(["item"], samples=True)
    with caplog.at_level(logging.WARNING):
        for _ in range(37):
            _step(new_keys, rows, range(1, 101))
        assert not caplog.messages
        for step in range(32):  # After so many steps, the new values are known too.
            first = 1000 + 100 * min(step, steps)
            _step(new_keys, rows, range(first, first + 100))
    assert [text.partition(" of its")[0] for text in caplog.messages] == ["feature item: 50%"]


def test_a_server_warns_at_the_end_of_a_window_and_shows_both_shares(caplog):
    new_keys = NewKeys(["user", "item"])
    new_keys.add(["item", "user"], np.array([[20, 30], [0, 60]]))
    new_keys.watch({"item": 0.25, "user": 0.0})
    assert new_keys.shares == {"user": 0.0} and not caplog.messages
    new_keys.add(["item"], np.array([[30, 30]]))
    new_keys.watch({"item": 0.25, "user": 0.0})
    assert [text.partition(" of its")[0] for text in caplog.messages] == ["feature item: 83%"]
    gauges = [sample for family in new_keys.metrics("ctr_score") for sample in family.samples]
    assert {(each.name, each.labels["feature"], round(each.value, 2)) for each in gauges} == {
        ("ctr_score_new_key_share", "user", 0.0),
        ("ctr_score_new_key_share", "item", 0.83),
        ("ctr_score_new_key_share_in_training", "user", 0.0),
        ("ctr_score_new_key_share_in_training", "item", 0.25),
    }
