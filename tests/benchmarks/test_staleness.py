"""The simulation of `benchmarks/staleness.py`; the measurement itself is no test."""

import collections
import pathlib

import numpy as np
import pytest

from ctr_trainer.embedding.table.table import Table
from ctr_trainer.embedding.table.table_config import TableConfig

BENCHMARKS = pathlib.Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def staleness_run(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import staleness_run

    return staleness_run


@pytest.fixture
def simulation(staleness_run, movielens, tmp_path):
    data = staleness_run.convert_movielens(movielens / "movielens", tmp_path / "work")
    return staleness_run.Simulation(data, batch_size=4, epochs=3, part="train")


@pytest.mark.parametrize(
    ("optimizer", "workers", "merge"), [("adagrad", 1, "sum"), ("adam", 2, "adaptive"), ("sgd", 2, "mean")]
)
def test_a_point_trains_from_the_same_start_each_time(simulation, staleness_run, optimizer, workers, merge):
    point = staleness_run.Point(optimizer, workers, 2, merge, 1, 0.05, 1e-6)
    auc = simulation.run(point)
    assert 0 <= auc <= 1
    assert simulation.run(point) == auc


def test_a_longer_interval_trains_other_rows(simulation, staleness_run):
    """Under `sum` at a rate this high one can tell from the AUC of the training part, which some learn by heart."""
    aucs = {simulation.run(staleness_run.Point("sgd", 2, n, "sum", 1, 5.0, 1e-6)) for n in (1, 2, 3)}
    assert len(aucs) > 1


def test_late_gradients_come_in_their_order_and_none_is_lost(staleness_run):
    table = Table(TableConfig("t", (1,), (0.0,), "sgd"))
    slots = table.find_or_create(np.array([5]))
    waiting = collections.deque((table, slots, [np.float32([[gradient]])]) for gradient in (1, 2, 4))
    rows = []
    for late in (3, 2, 2, 0):
        staleness_run.apply_late(waiting, late, learning_rate=1.0)
        rows.append(table.rows[slots].item())
    assert rows == [0, -1, -1, -7]
