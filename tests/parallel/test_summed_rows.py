import numpy as np
import pyarrow as pa
import pytest

from ctr_trainer.features.hashing import keys
from tests import small
from tests.parallel import launch
from tests.parallel.summed import NORMED, WAYS

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def outs(tmp_path_factory):
    """By number of workers, the directory of what two workers, and a lone worker with the batches of both, became."""
    data = small.make_pretrained(tmp_path_factory.mktemp("summed"), rows=400)
    outs = {workers: tmp_path_factory.mktemp(f"workers{workers}") for workers in (2, 0)}
    for workers, out in outs.items():
        launch.run(workers, launch.WORKERS / "summed_rows.py", data, out, 2)
    return outs


@pytest.mark.parametrize("name", WAYS)
def test_workers_of_a_host_make_the_row_steps_of_one_worker_with_all_batches(outs, name):
    two, one = (dict(np.load(out / f"{name}.npz")) for out in outs.values())
    assert two.keys() == one.keys()
    np.testing.assert_array_equal(two["keys"], one["keys"])
    for variable, value in one.items():
        np.testing.assert_allclose(two[variable], value, atol=1e-6, rtol=1e-6, err_msg=variable)
    assert np.ptp(one["rows"]) > 0.01  # The rows were trained.
    items = two["rows"][np.searchsorted(two["keys"], keys("item", pa.array(small.ITEMS))), :4]
    assert np.array_equal(items, small.VECTORS[:30]) == WAYS[name].is_frozen


@pytest.mark.parametrize("name", NORMED)
def test_workers_with_batch_statistics_end_with_equal_variables_that_moved(outs, name):
    ours, theirs = (dict(np.load(outs[2] / f"{name}-{rank}.npz")) for rank in range(2))
    for variable, value in theirs.items():
        np.testing.assert_array_equal(ours[variable], value, variable)
    layer = "attention_0.activation_0" if name == "dice" else "mlp.batch_norm_0"
    assert ours[f"{layer}.weight"] == pytest.approx(1 - 0.99**10, rel=1e-4)
    assert (ours[f"{layer}.moments"] != 0).all()
    if name != "dice":
        assert (ours[f"{layer}.moments"][1] > 0).all()  # The variance.


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
