import numpy as np
import pytest

from ctr_trainer.ranks import distributed
from tests import small
from tests.parallel import launch, side_by_side

pytestmark = pytest.mark.integration

STEPS = 50
ROWS = 1591  # at the last step one worker has 11 examples, the other 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return small.make(tmp_path_factory.mktemp("strict"), rows=ROWS)


@pytest.fixture(scope="module")
def two(data, tmp_path_factory):
    """A function f(name, rank=0) -> dict of the final state of two workers for a way of training."""
    out = tmp_path_factory.mktemp("two")
    launch.run(2, launch.WORKERS / "strict_sgd.py", data, out, STEPS)
    return lambda name, rank=0: dict(np.load(out / f"{name}-{rank}.npz"))


def test_two_workers_with_own_copies_and_sgd_equal_one_with_both_batches(data, tmp_path, two):
    distributed.init()
    one = side_by_side.train(data, tmp_path, STEPS)
    assert one["global_step"] == STEPS
    assert np.abs(one["rows"][:, 4]).max() > 0.05  # the linear weights start at 0: they were trained
    assert np.abs(one["logits.bias"]).max() > 0.01  # as does the bias
    np.testing.assert_array_equal(two("sgd")["keys"], one["keys"])
    assert two("sgd").keys() == one.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two("sgd")[name], value, atol=1e-5, rtol=0, err_msg=name)


@pytest.mark.parametrize("name", ["sgd", "batch_norm", "local", "overlap", "dice"])
def test_workers_end_with_equal_dense_variables(two, name):
    ours, theirs = two(name), two(name, rank=1)
    for variable, value in theirs.items():
        np.testing.assert_array_equal(ours[variable], value, variable)


def test_moving_statistics_of_batch_norm_and_dice_moved(two):
    for name in ("batch_norm", "local", "overlap"):
        found = two(name)
        mean, variance = found["mlp.batch_norm_0.moments"] / found["mlp.batch_norm_0.weight"]
        assert found["mlp.batch_norm_0.weight"] == pytest.approx(1 - 0.9**10, rel=1e-4)
        assert (variance > 0).all() and (mean != 0).all()
    found = two("dice")
    assert found["attention_0.activation_0.weight"] == pytest.approx(1 - 0.9**10, rel=1e-4)
    assert (np.abs(found["attention_0.activation_0.moments"]) > 0).all()
