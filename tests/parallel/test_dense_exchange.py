"""Dense gradients of two workers against the same steps in one process, by NumPy."""

import numpy as np
import pytest

from tests.parallel import launch
from tests.parallel.workers.dense_batches import ALL, START, STEPS

pytestmark = pytest.mark.integration

RATE = 0.1


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """The directory of what two workers became."""
    out = tmp_path_factory.mktemp("dense_exchange")
    launch.run(2, launch.WORKERS / "dense_exchange.py", out)
    return out


@pytest.fixture(scope="module", params=("auto", "horovod"))
def trained(request, job):
    """For each rank, a dict of way of training -> w after each step, float32[steps, 2]."""
    return [dict(np.load(job / f"{request.param}-{rank}.npz")) for rank in (0, 1)]


def _gradient(w, step, rows=(0, 1, 2)):
    """Returns the gradient of the mean of (x . w - y)^2 over some of a step's examples."""
    x, y = (values[list(rows)].astype(np.float64) for values in ALL[step])
    return 2 * (x @ w - y) @ x / len(rows)


def _sgd(gradient, rate=RATE):
    """Returns w after each step of w -= rate * gradient(w, step)."""
    w, found = np.array(START), []
    for step in range(STEPS):
        w = w - rate * gradient(w, step)
        found.append(w)
    return np.array(found)


def _both(trained, name):
    np.testing.assert_array_equal(trained[0][name][-1], trained[1][name][-1])
    return trained[0][name]


def test_four_workers_on_two_hosts_step_as_one_batch_and_all_have_the_same_bits(tmp_path):
    launch.run(4, launch.WORKERS / "dense_exchange.py", tmp_path, hosts="localhost:2,127.0.0.1:2")
    for exchange in ("auto", "horovod"):
        ranks = [dict(np.load(tmp_path / f"{exchange}-{rank}.npz")) for rank in range(4)]
        for name, expected in (("sgd", _sgd(_gradient)), ("adagrad", _adagrad(_gradient, STEPS))):
            for of_rank in ranks:
                np.testing.assert_array_equal(of_rank[name], ranks[0][name])
            np.testing.assert_allclose(ranks[0][name], expected, atol=1e-6, rtol=0)


def test_variables_that_three_workers_average_twice_keep_their_bits(tmp_path):
    launch.run(3, launch.WORKERS / "dense_exchange.py", tmp_path)  # Each worker asserts it.
    for exchange in ("auto", "horovod"):
        ranks = [dict(np.load(tmp_path / f"{exchange}-{rank}.npz"))["local"][-1] for rank in range(3)]
        np.testing.assert_array_equal(ranks, [ranks[0]] * 3)


def test_float16_on_the_wire_is_near(trained):
    exact = _sgd(_gradient)
    found = _both(trained, "fp16")
    np.testing.assert_allclose(found, exact, atol=5e-3, rtol=0)
    assert np.abs(found - exact).max() > 1e-7


def test_clipping_is_of_the_reduced_gradient(trained):
    def clipped(w, step):
        gradient = _gradient(w, step)
        return gradient * min(1, 0.5 / np.linalg.norm(gradient))

    found = _both(trained, "clipped")
    np.testing.assert_allclose(found, _sgd(clipped), atol=1e-6, rtol=0)
    assert np.abs(found - _sgd(_gradient)).max() > 1e-3


def _adagrad(gradient, steps):
    w, accumulator, found = np.array(START), 0.1, []
    for step in range(steps):
        g = gradient(w, step)
        accumulator = accumulator + g * g
        w = w - RATE * g / np.sqrt(accumulator)
        found.append(w)
    return np.array(found)


EXPECTED = {
    "split": lambda: _sgd(_gradient),
    "padded": lambda: _sgd(lambda w, step: _gradient(w, step, (0, 1))),
    "linear": lambda: _sgd(_gradient, 2 * RATE),
    "adagrad": lambda: _adagrad(_gradient, STEPS),
    # Two micro-batches of two workers make one step of six examples.
    "accumulated": lambda: _adagrad(
        lambda w, step: (_gradient(w, 2 * step) + _gradient(w, 2 * step + 1)) / 2, STEPS // 2
    ),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_three_examples_split_two_and_one_step_as_one_batch(trained, name):
    np.testing.assert_allclose(_both(trained, name), EXPECTED[name](), atol=1e-6, rtol=0)


def test_under_local_sgd_workers_step_alone_and_meet_at_the_mean(trained):
    ws, found = [np.array(START), np.array(START)], []
    for step in range(STEPS):
        ws = [w - RATE * _gradient(w, step, rows) for w, rows in zip(ws, ((0, 1), (2,)), strict=True)]
        if step % 2 == 1:
            ws = [(ws[0] + ws[1]) / 2] * 2
        found.append(ws)
    for rank in (0, 1):
        np.testing.assert_allclose(trained[rank]["local"], [w[rank] for w in found], atol=1e-6, rtol=0)
