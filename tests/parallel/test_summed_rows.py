import numpy as np
import pytest

from tests import small
from tests.parallel import launch
from tests.parallel.summed import WAYS


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A function f(name) -> (final state of two workers, of a lone worker with the batches of both)."""
    data = small.make(tmp_path_factory.mktemp("summed"), rows=400)
    outs = {workers: tmp_path_factory.mktemp(f"workers{workers}") for workers in (2, 0)}
    for workers, out in outs.items():
        launch.run(workers, launch.WORKERS / "summed_rows.py", data, out, 2)
    return lambda name: [dict(np.load(out / f"{name}.npz")) for out in outs.values()]


@pytest.mark.integration
@pytest.mark.parametrize("name", WAYS)
def test_workers_of_a_host_make_the_row_steps_of_one_worker_with_all_batches(runs, name):
    two, one = runs(name)
    assert two.keys() == one.keys()
    np.testing.assert_array_equal(two["keys"], one["keys"])
    for variable, value in one.items():
        np.testing.assert_allclose(two[variable], value, atol=1e-6, rtol=1e-6, err_msg=variable)
    assert np.ptp(one["rows"]) > 0.01  # The rows were trained.


@pytest.mark.integration
def test_sgd_workers_of_uneven_hosts_make_the_steps_of_one_worker(tmp_path):
    data, program = small.make(tmp_path / "data", rows=400), launch.WORKERS / "summed_rows.py"
    launch.run(0, program, data, tmp_path / "one", 3)
    with launch.service(tmp_path / "service", tmp_path) as service:
        # One machine under two names: two workers share one copy of the rows, and the third one has its own.
        launch.run(3, program, data, tmp_path / "three", 3, service, hosts="localhost:2,127.0.0.1:1")
    one, three = (dict(np.load(tmp_path / name / "of_hosts.npz")) for name in ("one", "three"))
    for variable, value in one.items():
        np.testing.assert_allclose(three[variable], value, atol=1e-6, rtol=1e-6, err_msg=variable)
    assert np.ptp(one["rows"]) > 0.01
