import numpy as np
import pytest

from tests import small
from tests.parallel import launch

STEPS = 50


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("strict"), rows=3200)


def test_two_workers_under_strict_sgd_equal_one_process_that_applies_both_gradients(data, tmp_path):
    """One process whose batch is the two workers' batches side by side, at twice the rate, sums both gradients."""
    launch.run(2, launch.WORKERS / "strict_sgd.py", data, tmp_path / "two", STEPS)
    launch.run(0, launch.WORKERS / "strict_sgd_both.py", data, tmp_path / "one", STEPS)
    two, one = (np.load(tmp_path / name / "rows.npz") for name in ("two", "one"))
    order_two, order_one = np.argsort(two["keys"]), np.argsort(one["keys"])
    np.testing.assert_array_equal(two["keys"][order_two], one["keys"][order_one])
    np.testing.assert_allclose(two["rows"][order_two], one["rows"][order_one], atol=1e-5, rtol=0)
    assert np.abs(two["rows"][:, 4]).max() > 0.05  # the linear weights start at 0: they were trained
