"""Identical runs end with bit-identical models, whatever delays a worker, and whether or not they are interrupted."""

import numpy as np
import pytest

from ctr_trainer.settings.run_config import RunConfig
from ctr_trainer.system.messages.errors import UserError
from tests import small
from tests.parallel import launch

WAYS = ("rows_of_host", "averaged", "micro_batches", "own_rows", "shared", "dense")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function f(name, rank) -> the final models of two jobs; the second one had a slow worker, and was resumed."""
    data = small.make(tmp_path_factory.mktemp("deterministic"), rows=1591)
    outs = [tmp_path_factory.mktemp(f"run{slow_rank}") for slow_rank in (-1, 1)]
    for slow_rank, out in zip((-1, 1), outs, strict=True):
        launch.run(2, launch.WORKERS / "deterministic.py", data, out, slow_rank)
    return lambda name, rank=0: [dict(np.load(out / f"{name}-{rank}.npz")) for out in outs]


@pytest.mark.integration
@pytest.mark.parametrize("name", WAYS)
def test_a_delay_and_an_interruption_change_no_bit_of_a_deterministic_run(runs, name):
    for rank in range(2):
        first, second = runs(name, rank)
        assert first.keys() == second.keys()
        for variable, value in first.items():
            np.testing.assert_array_equal(second[variable], value, variable)
    assert np.ptp(runs(name)[0]["rows"]) > 0.1  # The rows were trained.
    if name == "dense":
        assert set(runs(name)[0]["rows"][:, -1]) == {30}  # In a checkpoint no row lags behind the steps.


@pytest.mark.integration
def test_copies_of_several_hosts_also_end_with_the_same_bits(tmp_path):
    data, found = small.make(tmp_path / "data", rows=1591), []
    for slow_rank in (-1, 1):
        out = tmp_path / f"run{slow_rank}"
        with launch.service(tmp_path / f"service{slow_rank}", tmp_path) as service:
            arguments = launch.WORKERS / "deterministic.py", data, out, slow_rank, service
            launch.run(3, *arguments, hosts="localhost:2,127.0.0.1:1")  # One machine under two names.
        found.append([dict(np.load(out / f"hosts-{rank}.npz")) for rank in range(3)])
    for first, second in zip(*found, strict=True):
        assert first.keys() == second.keys()
        for variable, value in first.items():
            np.testing.assert_array_equal(second[variable], value, variable)
    assert np.ptp(found[0][0]["rows"]) > 0.1


@pytest.mark.integration
def test_without_it_a_delayed_worker_changes_the_model(runs):
    first, second = runs("as_they_come")
    assert not all(np.array_equal(second[variable], value) for variable, value in first.items())


def test_a_period_in_seconds_is_refused_by_name():
    with pytest.raises(UserError, match="save_checkpoints_secs=5"):
        RunConfig(deterministic=True, save_checkpoints_secs=5.0)
