"""Programs of tf.estimator's kind on one worker and on two, by optimizers of their own."""

import json

import numpy as np
import pytest

from tests.parallel import launch
from tests.parallel.workers import given_optimizer

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By number of workers, by rank, what each program's variable became."""
    outs = {workers: tmp_path_factory.mktemp(f"given{workers}") for workers in (0, 2)}
    launch.run(2, launch.WORKERS / "given_optimizer.py", outs[2])
    given_optimizer.main(outs[0])
    return {
        workers: [json.loads((out / f"{rank}.json").read_text()) for rank in range(max(workers, 1))]
        for workers, out in outs.items()
    }


@pytest.mark.parametrize("name", ["auto", "horovod", "adam", "sparse"])
def test_three_examples_split_two_and_one_train_as_one_batch_does(trained, name):
    alone = trained[0][0][name]
    np.testing.assert_allclose(trained[2][0][name], alone, atol=1e-5, rtol=0)
    assert np.abs(np.array(alone) - 0.1).max() > 0.1


def test_a_train_op_that_does_not_exchange_all_gradients_is_refused(
    trained,
):
    for rank in trained[2]:
        assert "updates 1 of 1 trainable variables by gradients that the 2 workers do not exchange" in rank["lone"]
        assert "tf_estimator.DistributedOptimizer(optimizer).minimize(loss, global_step)" in rank["lone"]
        assert "EstimatorSpec(mode, loss=loss, optimizer=optimizer)" in rank["lone"]
    assert trained[0][0]["lone"] == trained[0][0]["horovod"]  # A lone worker needs no exchange.
    for rank in trained[2]:
        assert "updates 1 of 2 trainable variables" in rank["partial"]
        assert "each worker would train its own: rows. Wrap the optimizer of these variables" in rank["partial"]
    assert len(trained[2][0]["grouped"]) == 4  # Both are wrapped.
    np.testing.assert_allclose(trained[0][0]["partial"], trained[0][0]["grouped"])


def test_variables_that_drift_apart_end_the_job_at_a_checkpoint(trained):
    for rank in trained[2]:
        assert "the workers no longer train one model: at step 20 these variables differ" in rank["beside"]
        assert "between the 2 ranks: w (by " in rank["beside"]
    assert len(trained[0][0]["beside"]) == 4


@pytest.mark.parametrize(
    "shape, lone",
    [
        ("clipped together", ["a", "b"]),
        ("one exchanged", ["b"]),
        ("scaled by an own norm", ["a", "b"]),
        ("rate of the step", []),
        ("by hand", ["a", "b"]),
        ("wrapped", []),
        ("chosen by a condition", ["a", "b"]),
        ("decay alone", []),
        ("in a condition", ["a", "b"]),
        ("exchanged in a condition", []),
        ("summed over steps", ["a", "b"]),
        ("summed, then exchanged", []),
    ],
)
def test_variables_that_a_ranks_own_examples_move_are_found(trained, shape, lone):
    found = {name: names for name, names in trained[2][0]["shapes"].items() if name.startswith(f"{shape} ")}
    assert len(found) == 3  # Of TensorFlow 1 and 2: control flow and variables.
    assert all(names == lone for names in found.values()), found


def test_only_a_train_op_of_horovods_optimizer_is_taken(
    trained,
):
    """There the second step waited for ever, on both ranks."""
    assert len(trained[2][0]["distributed"]) == 4
    for rank in trained[2]:
        assert "hvd.DistributedOptimizer does with backward_passes_per_step" in rank["aggregated"]
    for rank in (*trained[0], *trained[2]):
        assert "is distributed already" in rank["twice"]
        assert "Adagrad: give one of tf.compat.v1.train" in rank["keras"]
