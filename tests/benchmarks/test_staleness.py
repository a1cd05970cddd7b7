"""The simulation of `benchmarks/staleness.py`; the measurement itself is no test."""

import dataclasses
import pathlib

import pytest

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


def test_late_gradients_train_other_rows_and_none_is_lost(simulation, staleness_run):
    point = staleness_run.Point("sgd", 1, 1, "sum", 1, 5.0, 1e-6)
    in_time, late, last = (simulation.run(point, late) for late in (0, 3, 10**6))
    untrained = simulation.run(dataclasses.replace(point, learning_rate=0.0))
    assert in_time not in (late, last)
    assert last != untrained
